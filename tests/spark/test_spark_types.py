"""Arrow data with the types of Spark."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from contracts.elements import VALUES
from pyspark.sql.pandas.types import to_arrow_schema

from holdfast.errors import InvalidRequestError
from holdfast.spark.data_source import for_spark, spark_schema_of

TYPES: dict[str, tuple[pa.DataType, list[Any], str]] = {
    "uint8": (pa.uint8(), [255, None], "smallint"),
    "uint16": (pa.uint16(), [2**16 - 1, None], "int"),
    "uint32": (pa.uint32(), [2**32 - 1, None], "bigint"),
    "uint64": (pa.uint64(), [2**64 - 1, None], "decimal(20,0)"),
    "half": (pa.float16(), [1.5, None], "float"),
    "time in s": (pa.time32("s"), [dt.time(1, 2, 3), None], "time(6)"),
    "time in ns": (pa.time64("ns"), [dt.time(1, 2, 3, 4), None], "time(6)"),
    "duration": (pa.duration("ms"), [dt.timedelta(seconds=1.5), None], "interval day to second"),
    "fixed bytes": (pa.binary(2), [b"ab", None], "binary"),
    "large bytes": (pa.large_binary(), [b"ab", None], "binary"),
    "view of bytes": (pa.binary_view(), [b"ab", None], "binary"),
    "view of text": (pa.string_view(), ["ab", None], "string"),
    "date in ms": (pa.date64(), [dt.date(2020, 1, 1), None], "date"),
    "large list": (pa.large_list(pa.uint8()), [[1], None, [], [2, None]], "array<smallint>"),
    "list of two": (pa.list_(pa.int8(), 2), [[1, 2], [3, 4]], "array<tinyint>"),
    "list of categories": (
        pa.list_(pa.dictionary(pa.int32(), pa.string())),
        [["a", "b"], None, ["a"]],
        "array<string>",
    ),
    "map": (
        pa.map_(pa.large_string(), pa.struct([("a", pa.uint64())])),
        [[("a", {"a": 1})], None, [], [("b", None)]],
        "map<string,struct<a:decimal(20,0)>>",
    ),
    "small decimal": (pa.decimal32(4, 2), [Decimal("1.20"), None], "decimal(4,2)"),
    "decimal of 256 bits": (pa.decimal256(38, 0), [1, None], "decimal(38,0)"),
    "nothing": (pa.struct([("a", pa.null())]), [{"a": None}, None], "struct<a:void>"),
    "struct of nothing": (pa.struct([]), [{}, None], "struct<>"),
    "text that is JSON": (pa.json_(), ["{}", None], "string"),
}
for _kind, (_type, _values) in VALUES.items():
    TYPES[_kind] = (_type, [*_values, None], "")


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("sliced", ["whole", "sliced"])
def test_every_type_is_converted_for_spark(kind: str, sliced: str) -> None:
    element_type, values, spark_type = TYPES[kind]
    array = pa.array(values, element_type)
    batch = pa.record_batch({"value": pa.concat_arrays([array, array])})
    batch = batch.slice(len(values) - 1, len(values)) if sliced == "sliced" else batch
    schema = spark_schema_of(batch.schema)
    if spark_type:
        assert schema.simpleString() == f"struct<value:{spark_type}>"
    converted = for_spark(batch, schema)
    converted.validate(full=True)
    assert converted.schema.equals(to_arrow_schema(schema, timezone="UTC"))
    assert converted.to_pylist() == batch.to_pylist()


@pytest.mark.parametrize(
    "type",
    [
        pa.decimal256(40, 0),
        pa.decimal128(5, -2),
        pa.month_day_nano_interval(),
        pa.list_(pa.decimal256(40, 0)),
        pa.struct([pa.field("a", pa.int8()), pa.field("a", pa.int8())]),
    ],
    ids=str,
)
def test_unsupported_types_are_refused_by_name(type: pa.DataType) -> None:
    with pytest.raises(InvalidRequestError, match=r"value.*Spark does not support"):
        spark_schema_of(pa.schema([("value", type)]))


def test_nanoseconds_are_not_truncated() -> None:
    for value in (1000, 1001):
        batch = pa.record_batch({"value": pa.array([value], pa.timestamp("ns", "UTC"))})
        if value == 1000:
            assert for_spark(batch, spark_schema_of(batch.schema)).num_rows == 1
        else:
            with pytest.raises(InvalidRequestError, match="don't fit Spark's type"):
                for_spark(batch, spark_schema_of(batch.schema))
