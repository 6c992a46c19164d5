"""Which class has the values of a type of Spark's."""

import json
from functools import lru_cache

import pyarrow as pa
from pyspark.sql import types as spark

from holdfast.errors import InvalidRequestError
from holdfast.spark.processors.values.nested import Arrays, Maps, Structs
from holdfast.spark.processors.values.scalars import (
    Binaries,
    Booleans,
    Decimals,
    Floats,
    Integers,
    Nulls,
    Strings,
)
from holdfast.spark.processors.values.times import Dates, Durations, LocalTimestamps, Timestamps
from holdfast.spark.processors.values.value_type import ValueType

_SIMPLE: dict[type[spark.DataType], tuple[type[ValueType], pa.DataType]] = {
    spark.ByteType: (Integers, pa.int8()),
    spark.ShortType: (Integers, pa.int16()),
    spark.IntegerType: (Integers, pa.int32()),
    spark.LongType: (Integers, pa.int64()),
    spark.FloatType: (Floats, pa.float32()),
    spark.DoubleType: (Floats, pa.float64()),
    spark.BooleanType: (Booleans, pa.bool_()),
    spark.StringType: (Strings, pa.string()),
    spark.CharType: (Strings, pa.string()),
    spark.VarcharType: (Strings, pa.string()),
    spark.BinaryType: (Binaries, pa.binary()),
    spark.DateType: (Dates, pa.date32()),
    spark.TimestampType: (Timestamps, pa.timestamp("us", "UTC")),
    spark.TimestampNTZType: (LocalTimestamps, pa.timestamp("us")),
    spark.DayTimeIntervalType: (Durations, pa.duration("us")),
    spark.NullType: (Nulls, pa.null()),
}


def value_type(kind: spark.DataType) -> ValueType:
    """What values of a type of Spark's are.

    Raises:
        InvalidRequestError: State and output can't have the type, or a struct has two fields of a name.
    """
    if isinstance(kind, spark.StructType):
        return struct_type(kind)
    if isinstance(kind, spark.ArrayType):
        return Arrays(value_type(kind.elementType), kind.simpleString())
    if isinstance(kind, spark.MapType):
        return Maps(value_type(kind.keyType), value_type(kind.valueType), kind.simpleString())
    if isinstance(kind, spark.DecimalType):
        return Decimals(pa.decimal128(kind.precision, kind.scale), kind.simpleString())
    known = _SIMPLE.get(type(kind))
    if known is None:
        message = (
            f"values of Spark's type {kind.simpleString()} can't be kept; cast them to another type"
        )
        raise InvalidRequestError(message)
    make, arrow = known
    return make(arrow, kind.simpleString())


def struct_type(kind: spark.StructType) -> Structs:
    """The same for a struct."""
    return _struct_type(kind.json())


@lru_cache(maxsize=256)
def _struct_type(text: str) -> Structs:
    kind = spark.StructType.fromJson(json.loads(text))
    repeated = sorted({name for name in kind.names if kind.names.count(name) > 1})
    if repeated:
        message = f"a struct has two fields of the name {repeated[0]!r}: {kind.simpleString()}"
        raise InvalidRequestError(message)
    fields = [value_type(field.dataType) for field in kind.fields]
    return Structs(kind.names, fields, kind.simpleString())
