"""Arrow data in Spark types that preserve every value."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import pyarrow as pa
from pyarrow import types
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from holdfast.backends.arrow import (
    conform,
    fields_of,
    is_bytes,
    is_text,
    paths_in,
    plain_type,
)
from holdfast.common import raise_shortage
from holdfast.errors import InvalidRequestError

_MAX_DIGITS = 38

_IN_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
)
"""PySpark 4.1 has no such argument, because it always uses UTC."""


def spark_schema_of(schema: pa.Schema) -> StructType:
    """Return the Spark types of columns, all nullable.

    Raises:
        InvalidRequestError: No Spark type holds all values of a column.
    """
    fields = [(field.name, _spark_type(field.type, field.name)) for field in schema]
    return from_arrow_schema(pa.schema(fields))


def for_spark(batch: pa.RecordBatch, schema: StructType) -> pa.RecordBatch:
    """Cast rows to the types of a Spark schema.

    Raises:
        InvalidRequestError: A value would change, such as a time with nanoseconds, which Spark doesn't have.
    """
    wanted = to_arrow_schema(schema, **_IN_UTC)
    columns = []
    for column, field in zip(batch.columns, wanted, strict=True):
        try:
            columns.append(conform(column, field.type))
        except pa.ArrowException as error:
            raise_shortage(error)
            message = (
                f"column {field.name!r} of type {column.type} has values that don't fit Spark's type; "
                "read them with holdfast.read_state"
            )
            raise InvalidRequestError(message) from None
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _spark_type(type: pa.DataType, at: str) -> pa.DataType:
    """Return the Arrow type that Spark uses for a type."""
    type = plain_type(type)
    fields = fields_of(type)
    inner = [
        _spark_type(field.type, path)
        for field, path in zip(fields, paths_in(type, at), strict=True)
    ]
    if types.is_struct(type):
        names = [field.name for field in fields]
        if len(set(names)) < len(names):
            raise InvalidRequestError(
                f"{at} has two fields of the same name, which Spark does not support"
            )
        return pa.struct(list(zip(names, inner, strict=True)))
    if types.is_map(type):
        return pa.map_(*inner)
    if fields:
        return pa.list_(*inner)
    for is_type, spark_type in _SPARK_TYPES:
        if is_type(type):
            return spark_type(type)
    message = (
        f"{at} is of type {type}, which Spark does not support; read it with holdfast.read_state"
    )
    raise InvalidRequestError(message)


def _is_decimal(type: pa.DataType) -> bool:
    return bool(
        types.is_decimal(type)
        and type.precision <= _MAX_DIGITS
        and 0 <= type.scale <= type.precision
    )


def _always(type: pa.DataType) -> Callable[[pa.DataType], pa.DataType]:
    return lambda _: type


_SPARK_TYPES: tuple[
    tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], pa.DataType]], ...
] = (
    (types.is_uint8, _always(pa.int16())),
    (types.is_uint16, _always(pa.int32())),
    (types.is_uint32, _always(pa.int64())),
    (types.is_uint64, _always(pa.decimal128(20, 0))),
    (types.is_float16, _always(pa.float32())),
    (types.is_timestamp, lambda kind: pa.timestamp("us", None if kind.tz is None else "UTC")),
    (types.is_date, _always(pa.date32())),
    (types.is_time, _always(pa.time64("us"))),
    (types.is_duration, _always(pa.duration("us"))),
    (is_text, _always(pa.string())),
    (is_bytes, _always(pa.binary())),
    (types.is_fixed_size_binary, _always(pa.binary())),
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
