"""Filters on key columns: their keys are looked up, and the rows are those of a read of everything."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from contracts.written_keyed_states import KEYS_OF_TYPES, keyed_checkpoint, write_keys
from hypothesis import given
from hypothesis import strategies as st
from jobs.pyspark_versions import requires_pyspark
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, lit

from holdfast.spark.data_source import StateReader, StateView
from holdfast.spark.pushed_filters import keys_in


def filter_of(kind: str, name: str, value: Any) -> Any:
    """Return a filter like that of `pyspark.sql.datasource`, which PySpark has from 4.1 on."""
    return type(kind, (), {"attribute": (name,), "value": value})()


def rows_of(reader: StateReader) -> list[dict[str, Any]]:
    batches: Iterator[pa.RecordBatch] = (
        batch for partition in reader.partitions() for batch in reader.read(partition)
    )
    return [row for batch in batches for row in batch.to_pylist()]


def text(row: dict[str, Any]) -> str:
    """Return a row in a form that is equal for NaN."""
    return repr(sorted(row.items()))


@pytest.mark.parametrize("state", ["value", "list"])
@pytest.mark.parametrize("kind", KEYS_OF_TYPES)
def test_rows_of_a_pushed_key_equal_those_of_a_scan(tmp_path: Path, kind: str, state: str) -> None:
    schema, keys = KEYS_OF_TYPES[kind]
    pointer = write_keys(tmp_path.as_uri(), schema, keys)
    view = StateView.of({"path": pointer, "operator": "op", "state": state})
    every = rows_of(StateReader(view, view.spark_schema))
    assert len(every) == len(keys)
    for wanted in every:
        names = schema.names
        filters = [filter_of("EqualNullSafe", name, wanted[name]) for name in names]
        reader = StateReader(view, view.spark_schema)
        assert reader.pushFilters(filters) == filters
        expected = [row for row in every if all(repr(row[n]) == repr(wanted[n]) for n in names)]
        assert list(map(text, rows_of(reader))) == list(map(text, expected))
        assert len(reader.partitions()) == 1
    reader = StateReader(view, view.spark_schema)
    reader.pushFilters(
        [filter_of("In", name, [row[name] for row in every]) for name in schema.names]
    )
    assert sorted(map(text, rows_of(reader))) == sorted(map(text, every))


def test_zero_finds_the_key_with_either_sign(tmp_path: Path) -> None:
    schema, keys = KEYS_OF_TYPES["float64"]
    pointer = write_keys(tmp_path.as_uri(), schema, keys)
    view = StateView.of({"path": pointer, "operator": "op", "state": "value"})
    reader = StateReader(view, view.spark_schema)
    reader.pushFilters([filter_of("EqualTo", "k", -0.0)])
    assert [row["k"] for row in rows_of(reader)] == [0.0]


UNUSABLE: dict[str, list[Any]] = {
    "no filter": [],
    "another column": [filter_of("EqualTo", "value", 1)],
    "one of two columns": [filter_of("EqualTo", "k", "a")],
    "a comparison": [filter_of("EqualTo", "k", "a"), filter_of("GreaterThan", "n", 1)],
    "a value out of range": [filter_of("EqualTo", "k", "a"), filter_of("EqualTo", "n", 2**40)],
    "too many keys": [filter_of("In", "k", list("ab")), filter_of("In", "n", list(range(1000)))],
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_filters_without_keys_read_all_rows(tmp_path: Path, name: str) -> None:
    schema, keys = KEYS_OF_TYPES["several"]
    pointer = write_keys(tmp_path.as_uri(), schema, keys)
    view = StateView.of({"path": pointer, "operator": "op", "state": "value"})
    reader = StateReader(view, view.spark_schema)
    assert reader.pushFilters(UNUSABLE[name]) == UNUSABLE[name]
    assert len(rows_of(reader)) == len(keys)


def test_views_without_keys_ignore_filters(tmp_path: Path) -> None:
    pointer = keyed_checkpoint(tmp_path.as_uri())
    for options in ({"view": "states"}, {"state": "totals", "key": '{"user": "ann"}'}):
        view = StateView.of({"path": pointer, **options})
        reader = StateReader(view, view.spark_schema)
        before = rows_of(StateReader(view, view.spark_schema))
        reader.pushFilters(
            [filter_of("EqualTo", "user", "bob"), filter_of("EqualTo", "operator", "op")]
        )
        assert rows_of(reader) == before


@given(values=st.lists(st.one_of(st.none(), st.integers(-300, 300)), max_size=6))
def test_keys_are_the_different_values_of_the_type(values: list[int | None]) -> None:
    keys = keys_in([filter_of("In", "k", values)], pa.schema([("k", pa.int8())]))
    if any(value is not None and not -128 <= value <= 127 for value in values):
        assert keys is None
    else:
        assert keys is not None
        assert keys[0].to_pylist() == list(dict.fromkeys(values))


@requires_pyspark("4.1", "filters of data sources in Python")
@pytest.mark.parametrize("is_enabled", [True, False])
def test_filters_are_pushed_only_with_the_setting(
    spark: SparkSession, tmp_path: Path, *, is_enabled: bool
) -> None:
    schema, keys = KEYS_OF_TYPES["several"]
    pointer = write_keys(tmp_path.as_uri(), schema, keys)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", str(is_enabled).lower())
    try:
        rows = spark.read.format("holdfast").option("state", "value").load(pointer)
        chosen = rows.where((col("k") == "a") & (col("n") == lit(2)))
        assert [row["value"] for row in chosen.collect()] == [1]
        assert chosen.rdd.getNumPartitions() == (1 if is_enabled else 2)
        nulls = rows.where("k is null and n = 1").collect()
        assert [row["value"] for row in nulls] == [3]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
