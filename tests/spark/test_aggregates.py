"""Known aggregates: results over all batches equal those of Spark over all rows."""

import math
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from jobs.keyed_subtasks import KeyedSubtasks
from jobs.pyspark_versions import VERSION
from jobs.session import session_with
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, StructField, StructType

import holdfast as hf
from holdfast import keyed
from holdfast.backends.arrow import estimates_of_sketches, union_of_sketches
from holdfast.backends.descriptors import StateTtlConfig
from holdfast.errors import InvalidRequestError
from holdfast.spark.aggregates import (
    Aggregate,
    Aggregation,
    Panes,
    aggregate_rows,
    check_aggregates,
    operands_of,
)
from holdfast.spark.compat import read_arrow
from holdfast.spark.operators import Operator, Routing, read_table

COLUMNS = {
    "i": "int",
    "l": "bigint",
    "f": "float",
    "d": "double",
    "n": "decimal(10,2)",
    "w": "decimal(38,4)",
    "s": "string",
    "b": "boolean",
    "t": "timestamp",
    "day": "date",
    "bin": "binary",
}
SCHEMA = "k bigint, ts timestamp, " + ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
KEY = pa.schema([("k", pa.int64())])

EVERYTHING: dict[str, Aggregate] = {
    "rows": hf.count(),
    "count_s": hf.count("s"),
    **{f"sum_{name}": hf.sum(name) for name in "ifnw"},
    **{f"avg_{name}": hf.avg(name) for name in "ldnw"},
    **{f"min_{name}": hf.min(name) for name in COLUMNS},
    **{f"max_{name}": hf.max(name) for name in COLUMNS},
    **{f"first_{name}": hf.first(name, by="ts") for name in "lds"},
    **{f"last_{name}": hf.last(name, by="ts") for name in "lds"},
    **{f"all_{name}": hf.collect(name) for name in "ln"},
}


def some_rows(seed: int, count: int) -> list[tuple[Any, ...]]:
    """Return rows with nulls, NaN, zeros of both signs, and equal or missing times."""
    choose = random.Random(seed)
    halves = [n / 2 for n in range(-8, 8)]

    def row() -> tuple[Any, ...]:
        time = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=choose.randrange(20))
        values = [
            choose.randrange(-(2**31), 2**31),
            choose.randrange(-(2**40), 2**40),
            choose.choice([*halves, math.nan, math.inf, 0.0, -0.0]),
            choose.choice([*halves, math.nan, -math.inf, 0.0, -0.0]),
            Decimal(choose.randrange(-(10**10) + 1, 10**10)).scaleb(-2),
            Decimal(choose.randrange(-(10**30), 10**30)).scaleb(-4),
            choose.choice(["", "a", "b", "ä", "zz"]),
            choose.choice([True, False]),
            time - timedelta(microseconds=choose.randrange(5)),
            date(1960 + choose.randrange(100), 1, 1),
            choose.randbytes(choose.randrange(3)),
        ]
        key = choose.choice([None, 1, 2, 3, 4])
        missing = 1 / 4 if key != 4 else 1
        return (
            key,
            None if choose.random() < 0.1 else time,
            *(None if choose.random() < missing else value for value in values),
        )

    return [row() for _ in range(count)]


def comparable(rows: list[dict[str, Any]]) -> list[str]:
    """Return rows as comparable texts: floats to twelve digits, lists without order."""

    def plain(value: Any) -> Any:
        if isinstance(value, float):
            return "0" if value == 0 else f"{value:.12g}"
        if isinstance(value, list):
            return sorted(map(str, value))
        return value

    return sorted(repr({name: plain(value) for name, value in row.items()}) for row in rows)


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_table(frame, uid="test").to_pylist()
    return rows


@pytest.mark.usefixtures("state_backend")
def test_aggregates_of_all_batches_equal_those_of_spark(spark: SparkSession) -> None:
    subtasks = KeyedSubtasks(lambda: Aggregation(EVERYTHING), KEY)
    held: dict[Any, dict[str, Any]] = {}
    every: list[tuple[Any, ...]] = []
    for number, parallelism in enumerate([1, 3, 2]):
        rows = some_rows(number, 60)
        every += rows
        frame = spark.createDataFrame(rows, SCHEMA)
        operands = operands_of(frame, ["k"], EVERYTHING, combine=number > 0)
        subtasks.parallelism = parallelism
        out = subtasks.batch(read_table(operands, uid="test"), replays=number % 2)
        assert len({row["k"] for row in out}) == len(out)
        held |= {row["k"]: row for row in out}
    native = read_table(
        aggregate_rows(spark.createDataFrame(every, SCHEMA), ["k"], EVERYTHING), uid="test"
    )
    assert comparable([*held.values()]) == comparable(native.to_pylist())
    cast = pa.Table.from_pylist([*held.values()], native.schema)  # as a subtask does
    assert comparable(cast.to_pylist()) == comparable(native.to_pylist())


def table(numbers: list[int | None], key: int = 1) -> pa.Table:
    return pa.table(
        {"k": pa.array([key] * len(numbers), pa.int64()), "n": pa.array(numbers, pa.int64())}
    )


def test_only_keys_of_the_batch_are_emitted() -> None:
    subtasks = KeyedSubtasks(lambda: Aggregation({"n": hf.sum("n")}), KEY)
    assert subtasks.batch(table([1, 2])) == [{"k": 1, "n": 3}]
    assert subtasks.batch(table([None], key=2)) == [{"k": 2, "n": None}]
    assert subtasks.batch(table([4])) == [{"k": 1, "n": 7}]
    assert subtasks.batch(table([])) == []


def test_overflow_of_a_sum_is_an_error() -> None:
    subtasks = KeyedSubtasks(lambda: Aggregation({"n": hf.sum("n")}), KEY)
    subtasks.batch(table([2**62]))
    with pytest.raises(InvalidRequestError, match="a sum is less than"):
        subtasks.batch(table([2**62]))


@pytest.mark.usefixtures("state_backend")
def test_aggregates_expire_after_the_time_to_live() -> None:
    ttl = StateTtlConfig(timedelta(milliseconds=10))
    subtasks = KeyedSubtasks(lambda: Aggregation({"n": hf.sum("n")}, ttl=ttl), KEY)
    assert subtasks.batch(table([1]), batch_time=100) == [{"k": 1, "n": 1}]
    assert subtasks.batch(table([1]), batch_time=109) == [{"k": 1, "n": 2}]
    assert subtasks.batch(table([1]), batch_time=118) == [{"k": 1, "n": 3}]
    assert subtasks.batch(table([1]), batch_time=128) == [{"k": 1, "n": 1}]


def test_rows_gathered_in_several_steps_are_emitted_once(monkeypatch: Any) -> None:
    monkeypatch.setattr("holdfast.spark.aggregates.aggregation.ROWS_AT_ONCE", 4)
    subtasks = KeyedSubtasks(lambda: Aggregation({"n": hf.sum("n")}), KEY)
    assert subtasks.batch(table([1] * 20)) == [{"k": 1, "n": 20}]


def test_rows_in_several_arrays_are_folded_in_parts(monkeypatch: Any) -> None:
    monkeypatch.setattr("holdfast.backends.arrow.batches.MAX_BATCH_BYTES", 1)
    batches = [
        *table([1, 5]).to_batches(),
        *table([2], key=2).to_batches(),
        *table([3]).to_batches(),
    ]
    subtasks = KeyedSubtasks(lambda: Aggregation({"n": hf.max("n"), "rows": hf.count()}), KEY)
    output = subtasks.batch(pa.Table.from_batches(batches))
    assert sorted(output, key=lambda row: row["k"]) == [
        {"k": 1, "n": 5, "rows": 3},
        {"k": 2, "n": 2, "rows": 1},
    ]


def test_bad_aggregates_are_refused() -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({}, "there are no aggregates"),
        ({"n": "sum"}, "aggregate 'n' is a str; make it with the functions"),
        ({"K": hf.count()}, r"would have the names \['k'\]"),
        ({"n": hf.avg("x"), "n_sum": hf.sum("x")}, r"would have the names \['n_sum'\]"),
    ]
    for aggregates, text in bad:
        with pytest.raises(InvalidRequestError, match=text):
            check_aggregates(aggregates, ["k"])


def test_rows_without_an_aggregated_column_are_refused(spark: SparkSession) -> None:
    mean = {"mean": hf.avg("m")}
    subtasks = KeyedSubtasks(lambda: Aggregation(mean), KEY)
    with pytest.raises(InvalidRequestError, match=r"rows have no columns \['m'\]"):
        subtasks.batch(table([1]))
    with pytest.raises(InvalidRequestError, match=r"rows have no columns \['m'\]"):
        operands_of(spark.range(1), ["id"], mean, combine=True)


@pytest.mark.usefixtures("state_backend")
def test_distinct_values_of_all_batches_are_estimated(spark: SparkSession) -> None:
    distinct = {
        name: hf.approx_count_distinct(name) for name in ("l", "text", "double", "t", "none")
    }
    ttl = StateTtlConfig(timedelta(milliseconds=10))
    subtasks = KeyedSubtasks(lambda: Aggregation(distinct, ttl=ttl), KEY)
    for first in (0, 500):  # the ranges overlap
        frame = spark.range(first, first + 1500).selectExpr(
            "id % 2 as k", "id div 2 as l", "'x' || id as text", "if(id % 4 < 2, 0D, -0D) as double",
            "timestamp_seconds(id) as t", "cast(null as long) as none",
        )  # fmt: skip
        operands = operands_of(frame, ["k"], distinct)
        rows = read_table(operands, uid="test")
        out = subtasks.batch(rows, batch_time=100, replays=1)
    for row in out:
        near = pytest.approx(1000, rel=0.06)
        assert row == {"k": row["k"], "l": near, "text": near, "double": 1, "t": near, "none": 0}
    assert len(out) == 2
    later = subtasks.batch(rows, batch_time=200)
    assert [row["l"] for row in later] == [pytest.approx(750, rel=0.06)] * 2
    with pytest.raises(InvalidRequestError, match="leave out combine=False"):
        operands_of(frame, ["k"], distinct, combine=False)

    ours = [union_of_sketches([row["l__operand"]] * 2) for row in rows.to_pylist()]
    read = spark.createDataFrame([(data,) for data in ours], "sketch binary").selectExpr(
        "hll_sketch_estimate(sketch) as estimate"
    )
    counts = read_table(read, uid="test")["estimate"].to_pylist()
    assert counts == estimates_of_sketches(ours).to_pylist()


def test_distinct_values_need_combined_rows() -> None:
    distinct = {"n": hf.approx_count_distinct("n")}
    subtasks = KeyedSubtasks(lambda: Aggregation(distinct), KEY)
    with pytest.raises(InvalidRequestError, match="column 'n' needs combined rows"):
        subtasks.batch(table([1]))


def test_sum_of_texts_is_refused() -> None:
    rows = pa.table({"k": pa.array([1]), "s": ["a"]})
    for aggregate in (hf.sum("s"), hf.avg("s")):
        subtasks = KeyedSubtasks(lambda: Aggregation({"n": aggregate}), KEY)  # noqa: B023
        with pytest.raises(InvalidRequestError, match="of column 's': it has type string"):
            subtasks.batch(rows)


def test_rows_of_a_pane_are_combined(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [(1, datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)) for second in (1, 4, 6, 12)]
        + [(1, None)],
        "k bigint, ts timestamp",
    )
    panes = Panes("ts", length_ms=5000, offset_ms=1000)
    aggregates = {"rows": hf.count(), "latest": hf.max("ts")}
    combined = operands_of(frame, ["k"], aggregates, combine=True, panes=panes)
    rows = [
        (row["ts"].second, row["rows__operand"], row["latest__operand"].second)
        for row in rows_of(combined)
    ]
    assert sorted(rows) == [(1, 2, 4), (6, 1, 6), (11, 1, 12)]
    single = operands_of(frame, ["k"], aggregates, combine=False, panes=Panes("ts"))
    assert sorted(row["ts"].second for row in rows_of(single)) == [1, 4, 6, 12]


SOME = {name: EVERYTHING[name] for name in ("rows", "sum_i", "sum_w", "avg_d", "avg_n", "max_t")}
SOME |= {name: EVERYTHING[name] for name in ("min_s", "min_day", "last_l", "first_s", "all_n")}

SETTINGS = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "7",
    "spark.sql.execution.arrow.useLargeVarTypes": "true",
    "spark.sql.legacy.allowHashOnMapType": "true",
    "spark.sql.legacy.castComplexTypesToString.enabled": "true",
    "spark.sql.legacy.charVarcharAsString": "true",
    "spark.sql.legacy.collationAwareHashFunctions": "true",
    "spark.sql.legacy.decimal.retainFractionDigitsOnTruncate": "true",
    "spark.sql.legacy.integralDivide.returnBigint": "false",
    "spark.sql.legacy.sizeOfNull": "false",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.parser.quotedRegexColumnNames": "true",
    "spark.sql.preserveCharVarcharTypeInfo": "true",
    "spark.sql.retainGroupColumns": "false",
    "spark.sql.session.timeZone": "Asia/Kathmandu",
    "spark.sql.storeAssignmentPolicy": "LEGACY",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
}
"""Settings of a session that change what SQL means or how Spark makes Arrow data, away from their defaults."""


def outcomes(spark: SparkSession, schema: StructType) -> list[Any]:
    """Return results that the JVM computes for some rows: panes, sketches, schemas, and the subtasks of keys."""
    frame = spark.createDataFrame(some_rows(0, 40), schema)
    sketches = {f"distinct_{name}": hf.approx_count_distinct(name) for name in ("n", "day", "t")}
    panes = operands_of(frame, ["k"], SOME | sketches, panes=Panes("ts", 5000))
    small = StructType([StructField("d", DecimalType(38, 12))])
    decimals = spark.createDataFrame([(Decimal(n).scaleb(-11),) for n in range(50)], small)
    distinct = operands_of(decimals, [], {"distinct": hf.approx_count_distinct("d")})
    key = ("k", "s", "w", "t")
    operator = Operator(function=Aggregation(SOME), uid="o", parallelism=3, key=key)
    routed = read_arrow(Routing.of(frame, operator, 3, 128).repartition(frame, 0, 3))
    marks = routed.select([*key, routed.column_names[-1]])
    marks = marks.set_column(3, "t", routed["t"].cast(pa.int64()))
    return [
        comparable(rows_of(panes)),
        rows_of(distinct),
        aggregate_rows(frame, ["k"], EVERYTHING).schema.simpleString(),
        sorted(map(repr, marks.to_pylist())),
    ]


def test_results_do_not_depend_on_session_settings(spark: SparkSession) -> None:
    schema = spark.createDataFrame([], SCHEMA).schema
    expected = outcomes(spark, schema)
    with session_with(spark, SETTINGS):
        assert outcomes(spark, schema) == expected


def test_aggregates_of_unordered_values_are_refused(spark: SparkSession) -> None:
    rows = spark.range(1).selectExpr(
        "id as k",
        "array(id) as list",
        "map(id, id) as entries",
        "named_struct('list', array(id), 'text', 'a') as row",
        "'a' as text",
        "interval '1' year as months",
        "null as nothing",
    )
    wrong = {
        "list": "array<bigint>",
        "entries": "map<bigint,bigint>",
        "row": "array<bigint>",
        "months": "interval year",
        "nothing": "void",
    }
    if VERSION >= (4, 0):
        collated, variant = F.expr("'a' collate UNICODE_CI"), F.expr("parse_json('1')")
        rows = rows.withColumns({"text": collated, "variant": variant})
        wrong |= {"text": "string collate UNICODE_CI", "variant": "variant"}
    by_k = keyed(rows, "k", uid="o", parallelism=1)
    for name, kind in wrong.items():
        for aggregate in (
            hf.min(name),
            hf.max(name),
            hf.first(name, by="k"),
            hf.last("k", by=name),
        ):
            text = f"{aggregate.kind} of column '{name}'.* it has type {kind}, .* state"
            with pytest.raises(InvalidRequestError, match=text):
                by_k.agg(a=aggregate)
            with pytest.raises(InvalidRequestError, match=text):
                operands_of(rows, ["k"], {"a": aggregate}, combine=False)
        if name != "nothing":
            with pytest.raises(InvalidRequestError, match=f"of column '{name}'"):
                by_k.agg(a=hf.approx_count_distinct(name))
    counted = operands_of(rows, ["k"], {"a": hf.count("text"), "b": hf.collect("text")})
    assert rows_of(counted) == [{"k": 0, "a__operand": 1, "b__operand": ["a"]}]


def test_structs_are_compared_field_by_field(spark: SparkSession) -> None:
    values = [(1, 1.0), (1, math.nan), (0, 9.0), (None, 3.0)]
    schema = "k bigint, v struct<a: int, t: struct<d: double>>, at interval day"
    frame = spark.createDataFrame(
        [(1, (a, (d,)), timedelta(days=number)) for number, (a, d) in enumerate(values)], schema
    )
    aggregates = {"least": hf.min("v"), "most": hf.max("v"), "end": hf.last("v", by="at")}
    native = rows_of(aggregate_rows(frame, ["k"], aggregates))
    for combine in (True, False):
        subtasks = KeyedSubtasks(lambda: Aggregation(aggregates), KEY)
        operands = operands_of(frame, ["k"], aggregates, combine=combine)
        assert repr(subtasks.batch(read_table(operands, uid="test"))) == repr(native)


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_overflow_of_a_combined_sum_is_an_error(spark: SparkSession, ansi: str) -> None:
    largest = spark.createDataFrame(
        [(1, 2**63 - 1, Decimal(10**38 - 1)), (1, 1, Decimal(1)), (2, None, None)],
        "k bigint, n bigint, w decimal(38,0)",
    )
    with session_with(spark, {"spark.sql.ansi.enabled": ansi}):
        for name, aggregate in (("n", hf.sum("n")), ("w", hf.sum("w")), ("a", hf.avg("w"))):
            combined = operands_of(largest, ["k"], {name: aggregate})
            with pytest.raises(PySparkException, match=f"aggregate '{name}': a sum does not fit"):
                rows_of(combined)
            single = operands_of(largest, ["k"], {name: aggregate}, combine=False)
            subtasks = KeyedSubtasks(lambda: Aggregation({name: aggregate}), KEY)  # noqa: B023
            with pytest.raises(InvalidRequestError, match="a sum"):
                subtasks.batch(read_table(single, uid="test"))
            none = operands_of(largest.where("k = 2"), ["k"], {name: aggregate})
            assert rows_of(none)[0][f"{name}{'_sum' if name == 'a' else ''}__operand"] is None


@pytest.mark.usefixtures("state_backend")
def test_overflow_of_a_decimal_sum_in_a_batch_is_an_error() -> None:
    rows = pa.table(
        {
            "k": pa.array([1] * 4, pa.int64()),
            "n": pa.array([Decimal(9 * 10**19)] * 4, pa.decimal128(38, 18)),
        }
    )
    for aggregate in (hf.sum("n"), hf.avg("n")):
        subtasks = KeyedSubtasks(lambda: Aggregation({"n": aggregate}), KEY)  # noqa: B023
        with pytest.raises(InvalidRequestError, match="'aggregates': a sum exceeds the 38"):
            subtasks.batch(rows)


def test_overflow_of_a_decimal_mean_is_an_error() -> None:
    rows = pa.table({"k": pa.array([1], pa.int64()), "n": pa.array([10**37], pa.decimal128(38, 0))})
    subtasks = KeyedSubtasks(lambda: Aggregation({"mean": hf.avg("n")}), KEY)
    with pytest.raises(InvalidRequestError, match=r"aggregate 'mean': a mean .* decimal128\(38, 4"):
        subtasks.batch(rows)
