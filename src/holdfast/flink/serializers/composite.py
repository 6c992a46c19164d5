"""Composite values: lists, maps, tuples, rows, POJOs and Flink's wrappers of values.

Source:
    Flink, org.apache.flink.api.common.typeutils.base, org.apache.flink.api.java.typeutils.runtime,
    org.apache.flink.runtime.state.ttl (2.3.0).
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.flink.binary import modified_utf8
from holdfast.flink.serializers import hash_codes
from holdfast.flink.serializers.basic import LONG, list_reader
from holdfast.flink.serializers.serializer import (
    Packed,
    Read,
    Rows,
    Serializer,
    not_readable,
    null_key,
    read_bytes,
    read_count,
    unreadable,
)

_LONG, _INT = struct.Struct(">q"), struct.Struct(">i")
_SIGN = 1 << 63
_KINDS = ("+I", "-U", "+U", "-D")


def opaque_if_a_part_is(make: "Callable[..., Serializer]", *parts: Serializer) -> Serializer:
    """Make a serializer from parts; it is unreadable if one of the parts is."""
    for part in parts:
        if part.unreadable:
            return Serializer(pa.binary(), part.read, parts=parts, unreadable=part.unreadable)
    return make(*parts)


def list_of(element: Serializer) -> Serializer:
    """`ListSerializer`."""
    return Serializer(pa.list_(element.type), list_reader(element.read), parts=(element,))


def nullable_elements(element: Serializer, *, null: int) -> Serializer:
    """Make a serializer of elements with a null flag before each: 1 is null in sets, 0 in arrays."""
    read = element.read

    def read_element(data: bytes, position: int) -> tuple[Any, int]:
        if (data[position] != 0) == bool(null):
            return None, position + 1
        return read(data, position + 1)

    return Serializer(pa.list_(element.type), list_reader(read_element))


def linked_list_of(element: Serializer, *, has_mask: bool) -> Serializer:
    """`LinkedListSerializer` of the Table API: a count, a null bit for each element, the other elements."""
    read_all = list_reader(element.read)

    def read(data: bytes, position: int) -> tuple[list[Any], int]:
        if not has_mask:
            return read_all(data, position)
        (count,) = _INT.unpack_from(data, position)
        mask, position = read_bytes(data, position + 4, (count + 7) // 8)
        values = []
        for number in range(count):
            value = None
            if not mask[number >> 3] & 0x80 >> (number & 7):
                value, position = element.read(data, position)
            values.append(value)
        return values, position

    return Serializer(pa.list_(element.type), read)


def map_of(key: Serializer, value: Serializer) -> Serializer:
    """`MapSerializer`."""
    read_key, read_value = key.read, value.read

    def read(data: bytes, position: int) -> tuple[list[tuple[Any, Any]], int]:
        count, position = read_count(data, position)
        pairs = []
        for _ in range(count):
            name, position = read_key(data, position)
            if name is None:
                raise null_key()
            content = None
            is_null = data[position]
            position += 1
            if not is_null:
                content, position = read_value(data, position)
            pairs.append((name, content))
        return pairs, position

    return Serializer(pa.map_(key.type, value.type), read, parts=(key, value))


def tuple_of(*fields: Serializer) -> Serializer:
    """`TupleSerializer`: the fields in order."""
    fields_in_order = case_class_of(*fields)
    hashes = [field.hash_codes for field in fields if field.hash_codes is not None]
    if fields_in_order.unreadable or len(hashes) < len(fields):
        return fields_in_order
    return replace(fields_in_order, hash_codes=hash_codes.of_tuples(hashes))


def case_class_of(*fields: Serializer) -> Serializer:
    """The serializer of Scala's case classes, which are tuples with another hash code."""
    return struct_of({f"f{number}": field for number, field in enumerate(fields)})


def struct_of(fields: Mapping[str, Serializer]) -> Serializer:
    """Named fields in order."""
    if not fields:  # a list could have any number of them in zero bytes
        return unreadable("a tuple without fields")
    reads = [(name, field.read) for name, field in fields.items()]

    def read(data: bytes, position: int) -> tuple[dict[str, Any], int]:
        values = {}
        for name, read_field in reads:
            values[name], position = read_field(data, position)
        return values, position

    type = pa.struct([(name, field.type) for name, field in fields.items()])
    return _of_one_width(Serializer(type, read), list(fields.values()))


def _of_one_width(whole: Serializer, parts: Sequence[Serializer]) -> Serializer:
    """Return the serializer of structs with their width, if all parts have a fixed width."""
    columns = [(part.width, part.column) for part in parts if part.column is not None]
    if len(columns) < len(parts):
        return whole

    def column(rows: Rows) -> pa.Array:
        arrays, start = [], 0
        for width, part in columns:
            arrays.append(part(rows[:, start : start + width]))
            start += width
        return pa.StructArray.from_arrays(arrays, fields=list(whole.type))

    return replace(whole, width=sum(width for width, _ in columns), column=column)


def row_of(*fields: Serializer, has_kind: bool) -> Serializer:
    """`RowSerializer`: bits for its change type and for null fields, then the other fields."""
    skipped = 2 if has_kind else 0
    size = (len(fields) + skipped + 7) // 8
    reads = [(f"f{number}", field.read) for number, field in enumerate(fields)]
    names = [("kind", pa.string())] if has_kind else []
    type = pa.struct(names + [(f"f{number}", field.type) for number, field in enumerate(fields)])
    if not size:
        return unreadable("a row without fields")

    def read(data: bytes, position: int) -> tuple[dict[str, Any], int]:
        mask, position = read_bytes(data, position, size)
        bits = f"{int.from_bytes(mask, 'big'):0{8 * size}b}"
        values: dict[str, Any] = {}
        if has_kind:
            values["kind"] = _KINDS[int(bits[1::-1], 2)]
        for (name, read_field), bit in zip(reads, bits[skipped:], strict=False):
            values[name] = None
            if bit == "0":
                values[name], position = read_field(data, position)
        return values, position

    return Serializer(type, read)


def either_of(left: Serializer, right: Serializer) -> Serializer:
    """`EitherSerializer`: a flag for the side, and its value."""

    def read(data: bytes, position: int) -> tuple[dict[str, Any], int]:
        is_left = data[position] != 0
        value, position = (left if is_left else right).read(data, position + 1)
        return {"left" if is_left else "right": value}, position

    return Serializer(pa.struct([("left", left.type), ("right", right.type)]), read)


def nullable(inner: Serializer, *, padding: int) -> Serializer:
    """`NullableSerializer`: a null flag, then padding or the value."""
    read_inner = inner.read

    def read(data: bytes, position: int) -> tuple[Any, int]:
        if data[position]:
            _, position = read_bytes(data, position + 1, padding)
            return None, position
        return read_inner(data, position + 1)

    return Serializer(inner.type, read, length=padding + 1 if padding else -1)


def with_last_access(_time: Serializer, value: Serializer) -> Serializer:
    """Values with a time to live: the time of the last use in milliseconds, and the value."""
    read_value = value.read

    def read(data: bytes, position: int) -> tuple[dict[str, Any], int]:
        last_access = _LONG.unpack_from(data, position)[0]
        content, position = read_value(data, position + 8)
        return {"value": content, "last_access": last_access}, position

    def column(rows: Rows) -> pa.Array:
        assert value.column is not None
        return with_times(value.column(rows[:, 8:]), rows[:, :8])

    def packed_column(packed: Packed) -> pa.Array | None:
        assert value.packed_column is not None
        parts = packed.split(8, 0)
        values = None if parts is None else value.packed_column(parts[1])
        return None if parts is None or values is None else with_times(values, parts[0])

    def with_times(values: pa.Array, times: Rows) -> pa.Array:
        assert LONG.column is not None
        last_access = LONG.column(times).view(pa.timestamp("ms", "UTC"))
        return pa.StructArray.from_arrays([values, last_access], fields=list(type))

    type = pa.struct([("value", value.type), ("last_access", pa.timestamp("ms", "UTC"))])
    return Serializer(
        type,
        read,
        width=8 + value.width if value.column else 0,
        column=column if value.column else None,
        packed_column=packed_column if value.packed_column else None,
        has_last_access=True,
    )


def timer_of(key: Serializer, namespace: Serializer) -> Serializer:
    """`TimerSerializer`: its time in a form that sorts bytewise, its key and its namespace."""
    read_key, read_namespace = key.read, namespace.read

    def read(data: bytes, position: int) -> tuple[dict[str, Any], int]:
        timestamp, position = _read_time(data, position)
        owner, position = read_key(data, position)
        space, position = read_namespace(data, position)
        return {"timestamp": timestamp, "key": owner, "namespace": space}, position

    type = pa.struct([("timestamp", pa.int64()), ("key", key.type), ("namespace", namespace.type)])
    timer = _of_one_width(Serializer(type, read), [_SORTED_TIME, key, namespace])
    return replace(timer, parts=(key, namespace))


def _time_column(rows: Rows) -> pa.Array:
    times = np.ascontiguousarray(rows).view(">u8")[:, 0].astype(np.uint64)
    return pa.array((times ^ np.uint64(_SIGN)).view(np.int64))


def enum_of(names: Sequence[str]) -> Serializer:
    """`EnumSerializer`: the number of a name."""

    def read(data: bytes, position: int) -> tuple[str, int]:
        number = _INT.unpack_from(data, position)[0]
        if number < 0:
            message = f"an enum has no value {number}"
            raise ValueError(message)
        return names[number], position + 4

    return Serializer(pa.string(), read, length=4)


def _read_time(data: bytes, position: int) -> tuple[int, int]:
    return _LONG.unpack_from(data, position)[0] ^ -_SIGN, position + 8


_SORTED_TIME = Serializer(pa.int64(), _read_time, 8, 8, _time_column)


@dataclass(frozen=True, slots=True)
class PojoClass:
    """A class of POJOs.

    Attributes:
        name: The name of the Java class.
        fields: Fields in the order of the values.
    """

    name: str
    fields: Mapping[str, Serializer]


def pojo_of(
    own: PojoClass, registered: Sequence[Serializer], others: Mapping[str, Serializer]
) -> Serializer:
    """`PojoSerializer`: a byte of flags, then the fields, or a subclass and the output of its serializer.

    Args:
        own: The declared class.
        registered: Subclasses with a number.
        others: Subclasses without a number, by name.
    """
    for field in own.fields.values():
        if field.unreadable:
            return unreadable(field.unreadable)
    reads = [(name, field.read) for name, field in own.fields.items()]
    has_subclasses = bool(registered or others)

    def read(data: bytes, position: int) -> tuple[dict[str, Any] | None, int]:
        flags = data[position]
        position += 1
        if flags & 1:
            return None, position
        if flags & 8:
            number = data[position]
            return registered[number].read(data, position + 1)
        if flags & 4:
            subclass, position = _class_name(data, position)
            if subclass not in others:
                raise not_readable(f"{subclass}, a subclass of {own.name} that isn't registered,")
            return others[subclass].read(data, position)
        if not flags & 2:
            message = f"a POJO has the flags {flags}"
            raise ValueError(message)
        values: dict[str, Any] = {"class": own.name} if has_subclasses else {}
        return values, _read_fields(data, position, reads, values)

    subclasses = [*registered, *others.values()]
    return Serializer(_pojo_type(own, subclasses, has_subclasses=has_subclasses), read)


def _class_name(data: bytes, position: int) -> tuple[str, int]:
    (length,) = _SHORT.unpack_from(data, position)
    name, position = read_bytes(data, position + 2, length)
    return modified_utf8(name), position


def _read_fields(
    data: bytes, position: int, reads: Sequence[tuple[str, Read]], values: dict[str, Any]
) -> int:
    """Read the fields of a POJO into a dictionary; returns their end."""
    for name, read in reads:
        is_null = data[position]
        position += 1
        values[name] = None
        if not is_null:
            values[name], position = read(data, position)
    return position


def _pojo_type(
    own: PojoClass, subclasses: Sequence[Serializer], *, has_subclasses: bool
) -> pa.DataType:
    fields: dict[str, pa.DataType] = {"class": pa.string()} if has_subclasses else {}
    fields |= {name: field.type for name, field in own.fields.items()}
    for subclass in subclasses:
        if pa.types.is_struct(subclass.type):
            for field in subclass.type:
                fields.setdefault(field.name, field.type)
    return pa.struct(list(fields.items()))


def named_class(name: str, pojo: Serializer) -> Serializer:
    """Return the serializer of a subclass, whose values include the name of the class."""
    if pojo.unreadable or not pa.types.is_struct(pojo.type):
        return pojo
    read: Read = pojo.read

    def read_named(data: bytes, position: int) -> tuple[dict[str, Any] | None, int]:
        values, position = read(data, position)
        return values if values is None else {"class": name, **values}, position

    fields = [
        ("class", pa.string()),
        *((field.name, field.type) for field in pojo.type if field.name != "class"),
    ]
    return Serializer(pa.struct(fields), read_named)


_SHORT = struct.Struct(">H")
