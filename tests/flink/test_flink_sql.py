"""Rows of SQL, in the binary form of Flink's Table API."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from contracts.flink_kinds import (
    NO_NAMESPACE,
    TEXTS,
    Kind,
    each,
    i4,
    i8,
    simple,
    snapshot,
    string,
    utf,
)
from contracts.flink_savepoints import (
    Subtask,
    canonical_group,
    entry_key,
    keyed_description,
    keyed_info,
    keyed_stream,
    list_states,
    metadata,
)
from hypothesis import given
from hypothesis import strategies as st

from holdfast import flink
from holdfast.errors import CheckpointCorruptedError

SQL = "org.apache.flink.table.runtime.typeutils."
JAVA = b"\xac\xed\0\5sr\0\x2dorg.apache.flink.table.types.logical.BigIntType\0\0"
"""Return an object in the place of a field's type, which is skipped."""


@dataclass(frozen=True)
class Field:
    """A type of fields: 8 bytes of a value, and what doesn't fit there, which begins at an offset."""

    snapshot: bytes
    type: pa.DataType
    encode: Callable[[Any, int], tuple[bytes, bytes]]
    values: st.SearchStrategy[Any]


def number(name: str, code: str, type: pa.DataType, values: st.SearchStrategy[Any]) -> Field:
    return Field(
        simple(name),
        type,
        lambda value, _: (struct.pack(f"<{code}", value).ljust(8, b"\0"), b""),
        values,
    )


def variable(data: bytes, offset: int) -> tuple[bytes, bytes]:
    if len(data) <= 7:
        return data.ljust(7, b"\0") + bytes([0x80 | len(data)]), b""
    return struct.pack("<II", len(data), offset), data.ljust((len(data) + 7) // 8 * 8, b"\0")


def decimals(precision: int, scale: int) -> Field:
    def encode(value: Decimal, offset: int) -> tuple[bytes, bytes]:
        unscaled = int(value.scaleb(scale))
        if precision <= 18:
            return struct.pack("<q", unscaled), b""
        size = unscaled.bit_length() // 8 + 1
        # These are never inline.
        return struct.pack("<II", size, offset), unscaled.to_bytes(size, "big", signed=True).ljust(
            16
        )

    limit = min(10**precision, 10**27) - 1  # as many digits as `Decimal` computes with
    values = st.integers(-limit, limit).map(lambda n: Decimal(n).scaleb(-scale))
    content = i4(precision) + i4(scale)
    name = f"{SQL}DecimalDataSerializer$DecimalSerializerSnapshot"
    return Field(snapshot(name, 3, content), pa.decimal128(precision, scale), encode, values)


def timestamps(precision: int) -> Field:
    def encode(value: int, offset: int) -> tuple[bytes, bytes]:
        if precision <= 3:
            return struct.pack("<q", value), b""
        millis, nanos = divmod(value, 10**6)
        return struct.pack("<II", nanos, offset), struct.pack("<q", millis)

    unit = "ms" if precision <= 3 else "ns"
    name = f"{SQL}TimestampDataSerializer$TimestampDataSerializerSnapshot"
    values = st.integers(-(10**15), 10**15)
    return Field(snapshot(name, 1, i4(precision)), pa.timestamp(unit), encode, values)


TEXT = Field(
    snapshot(f"{SQL}StringDataSerializer$StringDataSerializerSnapshot"),
    pa.string(),
    lambda text, offset: variable(text.encode(), offset),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)
FIELDS = [
    number("Long", "q", pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    number("Int", "i", pa.int32(), st.integers(-(1 << 31), (1 << 31) - 1)),
    number("Short", "h", pa.int16(), st.integers(-(1 << 15), (1 << 15) - 1)),
    number("Byte", "b", pa.int8(), st.integers(-128, 127)),
    number("Boolean", "?", pa.bool_(), st.booleans()),
    number("Double", "d", pa.float64(), st.floats(allow_nan=False)),
    number("Float", "f", pa.float32(), st.floats(width=32, allow_nan=False)),
    TEXT,
    Field(simple("array.BytePrimitiveArray"), pa.binary(), variable, st.binary(max_size=12)),
    decimals(10, 2),
    decimals(30, 5),
    timestamps(3),
    timestamps(9),
]


def java(name: str, **fields: bytes | int) -> bytes:
    """An object of a class of types, as Java's serialization writes it in another."""
    described = utf(f"org.apache.flink.table.types.logical.{name}") + i8(0) + b"\2"
    described += len(fields).to_bytes(2, "big")
    for field, value in fields.items():
        is_number = isinstance(value, int)
        described += (b"I" if is_number else b"L") + utf(field)
        described += b"" if is_number else b"\x74" + utf("Lx;")
    values = [i4(value) if isinstance(value, int) else value for value in fields.values()]
    return b"\x73\x72" + described + b"\x78\x70" + b"".join(values)


LOGICAL = [
    *map(java, ["BigIntType", "IntType", "SmallIntType", "TinyIntType", "BooleanType"]),
    *map(java, ["DoubleType", "FloatType", "VarCharType", "VarBinaryType"]),
    java("DecimalType", precision=10, scale=2),
    java("DecimalType", precision=30, scale=5),
    java("TimestampType", precision=3),
    java("TimestampType", precision=9),
]
"""The types of `FIELDS`."""


def binary_array(values: list[Any], field: Field) -> bytes:
    size = field.type.bit_width // 8 or 1 if pa.types.is_primitive(field.type) else 8
    size = min(size, 8)
    start = 4 + (len(values) + 31) // 32 * 4
    fixed = (start + size * len(values) + 7) // 8 * 8
    nulls, slots, variable_part = 0, b"", b""
    for number, value in enumerate(values):
        slot = bytes(8)
        if value is None:
            nulls |= 1 << number
        else:
            slot, more = field.encode(value, fixed + len(variable_part))
            variable_part += more
        slots += slot[:size]
    head = struct.pack("<I", len(values)) + nulls.to_bytes(start - 4, "little") + slots
    return head.ljust(fixed, b"\0") + variable_part


def with_size(data: bytes) -> bytes:
    return i4(len(data)) + data


@given(number=st.integers(0, len(FIELDS) - 1), data=st.data())
def test_arrays_and_maps_of_any_elements_are_read(
    number: int, data: st.DataObject, tmp_path: Path
) -> None:
    element, key = FIELDS[number], TEXT
    arrays = data.draw(st.lists(st.lists(st.none() | element.values, max_size=40), max_size=3))
    maps = data.draw(
        st.lists(st.dictionaries(key.values, st.none() | element.values, max_size=3), max_size=3)
    )
    start = b"\xac\xed\0\5"
    array_type, map_type = start + LOGICAL[number], start + LOGICAL[FIELDS.index(TEXT)]
    serializer = start + java("Serializer")
    name = f"{SQL}ArrayDataSerializer$ArrayDataSerializerSnapshot"
    array = Kind(
        snapshot(name, 3, array_type + serializer),
        pa.list_(element.type),
        lambda values: with_size(binary_array(values, element)),
        st.none(),
    )

    def encode_pairs(pairs: dict[str, Any]) -> bytes:
        keys = binary_array(list(pairs), key)
        return with_size(
            struct.pack("<I", len(keys)) + keys + binary_array(list(pairs.values()), element)
        )

    name = f"{SQL}MapDataSerializer$MapDataSerializerSnapshot"
    described = snapshot(name, 3, map_type + array_type + serializer * 2)
    map = Kind(described, pa.map_(pa.string(), element.type), encode_pairs, st.none())
    states = list_states({"arrays": (array, arrays), "maps": (map, maps)})
    (tmp_path / "_metadata").write_bytes(metadata({"job": {0: Subtask(operator=states)}}))
    savepoint = flink.open_savepoint(tmp_path)
    read = savepoint.read_state("job", "arrays").column("value").combine_chunks()
    assert read == pa.array(arrays, array.type)
    read = savepoint.read_state("job", "maps").column("value").combine_chunks()
    assert read == pa.array([list(pairs.items()) for pairs in maps], map.type)


def binary_row(value: dict[str, Any], fields: tuple[Field, ...]) -> bytes:
    start = (len(fields) + 8 + 63) // 64 * 8
    kind = ["+I", "-U", "+U", "-D"].index(value["kind"])
    nulls, slots, variable_part = 0, b"", b""
    for n, field in enumerate(fields):
        content = value[f"f{n}"]
        slot = bytes(8)
        if content is None:
            nulls |= 1 << n
        else:
            slot, more = field.encode(content, start + 8 * len(fields) + len(variable_part))
            variable_part += more
        slots += slot
    return bytes([kind]) + nulls.to_bytes(start - 1, "little") + slots + variable_part


def row_of(*fields: Field) -> Kind:
    nested_row = i4(1333245) + i4(1) + each([field.snapshot for field in fields])
    content = i4(len(fields)) + JAVA * len(fields) + nested_row

    def encode(value: dict[str, Any]) -> bytes:
        data = binary_row(value, fields)
        return i4(len(data)) + data

    names = [(f"f{n}", field.type) for n, field in enumerate(fields)]
    values = {f"f{n}": st.none() | field.values for n, field in enumerate(fields)}
    return Kind(
        snapshot(f"{SQL}RowDataSerializer$RowDataSerializerSnapshot", 3, content),
        pa.struct([("kind", pa.string()), *names]),
        encode,
        st.fixed_dictionaries({"kind": st.sampled_from(["+I", "-U", "+U", "-D"]), **values}),
    )


def nested_row(*fields: Field) -> Field:
    row = row_of(*fields)
    return Field(
        row.snapshot,
        row.type,
        lambda value, offset: variable(binary_row(value, fields), offset),
        row.values,
    )


@given(data=st.data())
def test_rows_of_any_fields_are_read(data: st.DataObject, tmp_path: Path) -> None:
    fields = data.draw(st.lists(st.sampled_from(FIELDS), max_size=8))
    inner = data.draw(st.lists(st.sampled_from(FIELDS), max_size=2))
    row = row_of(*fields, nested_row(*inner))
    rows = data.draw(st.lists(row.values, max_size=3))
    content = metadata({"job": {0: Subtask(operator=list_states({"v": (row, rows)}))}})
    (tmp_path / "_metadata").write_bytes(content)
    table = flink.open_savepoint(tmp_path).read_state("job", "v")
    assert table.column("value").combine_chunks() == pa.array(rows, row.type)


def test_a_row_of_many_fields_has_more_bits_for_nulls(tmp_path: Path) -> None:
    row = row_of(*[FIELDS[0]] * 130)
    value = {"kind": "+I", **{f"f{n}": None if n % 3 else n for n in range(130)}}
    content = metadata({"job": {0: Subtask(operator=list_states({"v": (row, [value])}))}})
    (tmp_path / "_metadata").write_bytes(content)
    assert flink.open_savepoint(tmp_path).read_state("job", "v").column("value").to_pylist() == [
        value
    ]


@given(text=TEXTS)
def test_keyed_state_of_sql_is_read(text: str, tmp_path: Path) -> None:
    key, value = row_of(TEXT), row_of(FIELDS[0], TEXT)
    owner = {"kind": "+I", "f0": text}
    content = {"kind": "+U", "f0": 7, "f1": None}
    entries = [(entry_key(0, key, owner, NO_NAMESPACE, None), value.encode(content))]
    description = keyed_description(key.snapshot, [keyed_info("acc", "VALUE", value.snapshot)])
    stream = keyed_stream(description, [canonical_group({0: entries}), b""])
    (tmp_path / "_metadata").write_bytes(metadata({"job": {0: Subtask(keyed=stream)}}))
    assert flink.open_savepoint(tmp_path).read_state("job", "acc").to_pylist() == [
        {"key_group": 0, "key": owner, "value": content}
    ]


@pytest.mark.parametrize("precision", [0, 39])
def test_invalid_decimal_is_corruption(precision: int, tmp_path: Path) -> None:
    name = f"{SQL}DecimalDataSerializer$DecimalSerializerSnapshot"
    kind = Kind(snapshot(name, 3, i4(precision) + i4(0)), pa.null(), i8, st.none())
    content = metadata({"job": {0: Subtask(operator=list_states({"v": (kind, [1])}))}})
    (tmp_path / "_metadata").write_bytes(content)
    [row] = flink.open_savepoint(tmp_path).states().to_pylist()
    assert f"DECIMAL({precision}, 0)" in row["failure"]


def test_separate_values_are_read(tmp_path: Path) -> None:
    values: dict[str, tuple[bytes, bytes, Any]] = {
        "text": (TEXT.snapshot, i4(2) + "é".encode(), "é"),
        "small": (decimals(10, 2).snapshot, i8(-150), Decimal("-1.50")),
        "large": (decimals(30, 5).snapshot, i4(1) + b"\x07", Decimal("0.00007")),
    }
    states = {
        name: (Kind(content, pa.null(), lambda data: data, st.none()), [data])
        for name, (content, data, _) in values.items()
    }
    content = metadata({"job": {0: Subtask(operator=list_states(states))}})
    (tmp_path / "_metadata").write_bytes(content)
    savepoint = flink.open_savepoint(tmp_path)
    for name, (_, _, expected) in values.items():
        assert savepoint.read_state("job", name).column("value").to_pylist() == [expected]


def test_row_with_parts_outside_is_corruption(tmp_path: Path) -> None:
    row = row_of(TEXT)
    bad = bytes(8) + struct.pack("<II", 9, 1000)
    kind = Kind(row.snapshot, pa.null(), lambda data: i4(len(data)) + data, st.none())
    content = metadata({"job": {0: Subtask(operator=list_states({"v": (kind, [bad])}))}})
    (tmp_path / "_metadata").write_bytes(content)
    with pytest.raises(CheckpointCorruptedError, match="'v'"):
        flink.open_savepoint(tmp_path).read_state("job", "v")


def test_a_row_with_a_field_of_an_unknown_class_hides_no_other_state(tmp_path: Path) -> None:
    unknown = Field(snapshot("com.acme.Raw", 1, b"??"), pa.null(), variable, st.none())
    row = row_of(TEXT, unknown)
    raw = Kind(row.snapshot, pa.null(), lambda data: data, st.none())
    text = Kind(simple("String"), pa.string(), string, st.none())
    states: dict[str, tuple[Kind, list[Any]]] = {"v": (raw, [b"abc"]), "w": (text, ["x"])}
    content = metadata({"job": {0: Subtask(operator=list_states(states))}})
    (tmp_path / "_metadata").write_bytes(content)
    savepoint = flink.open_savepoint(tmp_path)
    assert savepoint.read_state("job", "v").column("value").to_pylist() == [b"abc"]
    assert savepoint.read_state("job", "w").column("value").to_pylist() == ["x"]
