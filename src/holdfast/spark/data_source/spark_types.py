"""Arrow data in types that Spark has, none of which loses a part of a value."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from holdfast.errors import InvalidRequestError

_MOST_DIGITS = 38

_IN_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
)
"""PySpark 4.1 takes no time zone, because it always means UTC."""


def spark_schema_of(schema: pa.Schema) -> StructType:
    """The columns as Spark has them; all of them may be null.

    Raises:
        InvalidRequestError: Spark has no type that holds all values of a column.
    """
    fields = [(field.name, _held(field.type, field.name)) for field in schema]
    return from_arrow_schema(pa.schema(fields))


def for_spark(batch: pa.RecordBatch, schema: StructType) -> pa.RecordBatch:
    """The rows as Spark takes them for a schema.

    Raises:
        InvalidRequestError: A value would change, such as a time with nanoseconds, which Spark hasn't.
    """
    wanted = to_arrow_schema(schema, **_IN_UTC)
    columns = []
    for column, field in zip(batch.columns, wanted, strict=True):
        try:
            columns.append(_cast(column, field.type))
        except pa.ArrowException:
            message = (
                f"column {field.name!r} of type {column.type} has values that Spark's type has no "
                "room for; holdfast.read_state reads them"
            )
            raise InvalidRequestError(message) from None
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _held(type: pa.DataType, at: str) -> pa.DataType:
    """The Arrow type that Spark has for a type."""
    if isinstance(type, pa.BaseExtensionType):
        return _held(type.storage_type, at)
    if types.is_dictionary(type):
        return _held(type.value_type, at)
    if types.is_struct(type):
        names = [field.name for field in type]
        if len(set(names)) < len(names):
            raise InvalidRequestError(f"{at} has two fields of one name, which Spark has not")
        return pa.struct([(field.name, _held(field.type, f"{at}.{field.name}")) for field in type])
    if types.is_map(type):
        return pa.map_(_held(type.key_type, f"{at}[key]"), _held(type.item_type, f"{at}[value]"))
    if _is_list(type):
        return pa.list_(_held(type.value_type, f"{at}[]"))
    for is_kind, held in _HELD:
        if is_kind(type):
            return held(type)
    message = f"{at} is of type {type}, which Spark has not; holdfast.read_state reads it"
    raise InvalidRequestError(message)


def _is_list(type: pa.DataType) -> bool:
    return any(
        is_kind(type)
        for is_kind in (
            types.is_list,
            types.is_large_list,
            types.is_fixed_size_list,
            types.is_list_view,
            types.is_large_list_view,
        )
    )


def _is_decimal(type: pa.DataType) -> bool:
    return bool(
        types.is_decimal(type)
        and type.precision <= _MOST_DIGITS
        and 0 <= type.scale <= type.precision
    )


def _is_text(type: pa.DataType) -> bool:
    return bool(types.is_string(type) or types.is_large_string(type) or types.is_string_view(type))


def _is_bytes(type: pa.DataType) -> bool:
    return bool(
        types.is_binary(type)
        or types.is_large_binary(type)
        or types.is_binary_view(type)
        or types.is_fixed_size_binary(type)
    )


def _always(held: pa.DataType) -> Callable[[pa.DataType], pa.DataType]:
    return lambda _: held


_HELD: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], pa.DataType]], ...] = (
    (types.is_uint8, _always(pa.int16())),
    (types.is_uint16, _always(pa.int32())),
    (types.is_uint32, _always(pa.int64())),
    (types.is_uint64, _always(pa.decimal128(20, 0))),
    (types.is_float16, _always(pa.float32())),
    (types.is_timestamp, lambda kind: pa.timestamp("us", None if kind.tz is None else "UTC")),
    (types.is_date, _always(pa.date32())),
    (types.is_time, _always(pa.time64("us"))),
    (types.is_duration, _always(pa.duration("us"))),
    (_is_text, _always(pa.string())),
    (_is_bytes, _always(pa.binary())),
    (_is_decimal, lambda kind: pa.decimal128(kind.precision, kind.scale)),
    *(
        (is_kind, lambda kind: kind)
        for is_kind in (
            types.is_boolean,
            types.is_integer,
            types.is_floating,
            types.is_null,
        )
    ),
)


def _cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The array as the wanted type, inside and out."""
    if array.type.equals(wanted):
        return array
    if isinstance(array, pa.ExtensionArray):
        return _cast(array.storage, wanted)
    if types.is_dictionary(array.type):
        return _cast(array.dictionary_decode(), wanted)
    mask = array.is_null() if array.null_count else None
    if types.is_struct(wanted):
        columns = [_cast(array.field(i), wanted.field(i).type) for i in range(wanted.num_fields)]
        if not columns:
            return pa.array([{}] * len(array), wanted, mask=mask)
        return pa.StructArray.from_arrays(columns, fields=list(wanted), mask=mask)
    if types.is_map(wanted):
        array = pa.concat_arrays([array])  # a slice's offsets would not begin at 0
        return pa.MapArray.from_arrays(
            array.offsets,
            _cast(array.keys, wanted.key_type),
            _cast(array.items, wanted.item_type),
            type=wanted,
            mask=mask,
        )
    if types.is_list(wanted):
        return _list_cast(array, wanted, mask)
    return array.cast(wanted)


def _list_cast(array: pa.Array, wanted: pa.ListType, mask: pa.Array | None) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int32())
    zero = pa.array([0], pa.int32())
    offsets = pa.concat_arrays([zero, pc.cumulative_sum(lengths)])
    return pa.ListArray.from_arrays(
        offsets, _cast(array.flatten(), wanted.value_type), type=wanted, mask=mask
    )
