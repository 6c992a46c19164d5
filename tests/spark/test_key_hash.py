"""Hashes of keys equal those of Spark, bit by bit."""

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs.pyspark_versions import frame_of
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from holdfast.backends.keys import (
    KEY_HASH,
    key_group_of,
    key_group_range,
    key_hash,
    subtask_of_key,
    xxhash64,
)
from holdfast.errors import InvalidRequestError
from holdfast.spark.compat import read_arrow


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    largest = 10**precision - 1
    special = [0, 127, 128, -128, -129, largest, -largest]
    digits = st.integers(-largest, largest) | st.sampled_from(special)
    return digits.map(lambda unscaled: Decimal(f"{unscaled}e-{scale}"))


# The range of Spark's timestamps, from year 1.
INSTANTS = st.integers(-62_000_000_000_000_000, 253_000_000_000_000_000)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)

KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): integers(8),
    pa.int16(): integers(16),
    pa.int32(): integers(32),
    pa.int64(): integers(64),
    pa.float32(): st.floats(width=32) | st.just(-0.0),
    pa.float64(): st.floats() | st.just(-0.0),
    pa.decimal128(9, 2): decimals(9, 2),
    pa.decimal128(18, 0): decimals(18, 0),
    pa.decimal128(19, 4): decimals(19, 4),
    pa.decimal128(38, 10): decimals(38, 10),
    pa.string(): TEXTS,
    pa.binary(): st.binary(max_size=12),
    pa.date32(): st.integers(-700_000, 2_900_000),
    pa.timestamp("us"): INSTANTS,
    pa.timestamp("us", "UTC"): INSTANTS,
    pa.duration("us"): integers(62),
    pa.list_(pa.int32()): st.lists(st.none() | integers(32), max_size=3),
    pa.list_(pa.list_(pa.string())): st.lists(st.lists(TEXTS, max_size=2), max_size=3),
    pa.struct([("a", pa.int64()), ("b", pa.string())]): st.fixed_dictionaries(
        {"a": st.none() | integers(64), "b": st.none() | TEXTS}
    ),
}
COLUMNS = [f"c{number}" for number in range(len(KINDS))]


def spark_hashes(spark: SparkSession, table: pa.Table, *keys: list[str]) -> list[list[int]]:
    """Compute both hashes of each key by Spark, in one job."""
    hashes = [
        function(*key).alias(f"{function.__name__}{number}")
        for function in (F.hash, F.xxhash64)
        for number, key in enumerate(keys)
    ]
    table_of_hashes = read_arrow(frame_of(spark, table).select(*hashes))
    return [column.to_pylist() for column in table_of_hashes.columns]


def our_hashes(table: pa.Table, *keys: list[str]) -> list[list[int]]:
    columns = [[table[name].combine_chunks() for name in key] for key in keys]
    groups = [key_hash(key).to_pylist() for key in columns]
    return [*groups, *(xxhash64(key).view(np.int64).tolist() for key in columns)]


def test_hashes_equal_those_of_spark(spark: SparkSession) -> None:
    rows: list[tuple[Any, ...]] = []

    @settings(database=None)
    @given(st.tuples(*(st.none() | values for values in KINDS.values())))
    def collect(row: tuple[Any, ...]) -> None:
        rows.append(row)

    collect()  # and one job for all of them
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, KINDS, strict=True)]
    table = pa.table(arrays, names=COLUMNS)
    keys = [*([name] for name in COLUMNS), COLUMNS, COLUMNS[::-1]]
    pairs = zip(our_hashes(table, *keys), spark_hashes(spark, table, *keys), strict=True)
    by_key = zip([*keys, *keys], pairs, strict=True)
    assert [key for key, (ours, theirs) in by_key if ours != theirs] == []


def test_hashes_of_special_values_equal_those_of_spark(spark: SparkSession) -> None:
    special: dict[pa.DataType, list[Any]] = {
        pa.int64(): [-(1 << 63), (1 << 63) - 1, 0, -1, None],
        pa.int32(): [-(1 << 31), (1 << 31) - 1, 0, -1, None],
        pa.float64(): [math.nan, -math.nan, 0.0, -0.0, math.inf, -math.inf, 5e-324, None],
        pa.float32(): [math.nan, -math.nan, 0.0, -0.0, math.inf, -math.inf, 1e-45, None],
        pa.string(): ["", None, *("häßlich€"[:end] for end in range(1, 9)), "a\0", "\U0001f600"],
        pa.large_string(): [
            ("stripes of 32 bytes, four lanes; " * 4)[:end] for end in (31, 32, 33, 44, 63, 64, 127)
        ],
        pa.binary(): [
            b"",
            None,
            *(b"\xff\x80\x7f\x00\xfe\x81\x01\xc3\xa9"[:end] for end in range(1, 10)),
        ],
        pa.decimal128(38, 0): [0, -1, 127, 128, -128, -129, 10**38 - 1, 1 - 10**38, 1 << 64, None],
    }
    rows = max(map(len, special.values()))
    padded = [pa.array(some + [None] * (rows - len(some)), kind) for kind, some in special.items()]
    table = pa.table(padded, names=[str(kind) for kind in special])
    keys = [[f"`{name}`"] for name in table.column_names]
    hashes = our_hashes(table, *([name] for name in table.column_names))
    assert hashes == spark_hashes(spark, table, *keys)
    zeros = dict(zip(map(str, special), hashes[: len(special)], strict=True))
    assert zeros["double"][2] == zeros["double"][3]
    assert zeros["float"][0] == zeros["float"][1]


def test_sliced_array_has_the_hashes_of_its_rows() -> None:
    for kind, some in {
        pa.int64(): [1, None, 3, 4],
        pa.float32(): [1, None, 3, 4],
        pa.bool_(): [True, None, False, True],
        pa.string(): ["one", None, "three", "fo"],
        pa.large_binary(): [b"one", None, b"three", b"fo"],
        pa.decimal128(20, 0): [1, None, 3, 4],
        pa.list_(pa.string()): [["a"], None, ["b", None], ["c", "d"]],
        pa.struct([("a", pa.int8())]): [{"a": 1}, None, {"a": None}, {"a": 4}],
    }.items():
        whole = pa.array(some, kind)
        assert key_hash([whole[1:]]).equals(key_hash([whole])[1:]), kind
        assert (xxhash64([whole[1:]]) == xxhash64([whole])[1:]).all(), kind


def test_empty_and_null_arrays_can_be_hashed() -> None:
    for kind in [*KINDS, pa.null(), pa.large_string()]:
        assert len(key_hash([pa.array([], kind)])) == 0
    assert key_hash([pa.nulls(2)]).to_pylist() == [42, 42]


@pytest.mark.parametrize(
    "kind",
    [
        pa.map_(pa.string(), pa.int64()),
        pa.list_(pa.map_(pa.string(), pa.int64())),
        pa.uint32(),
        pa.float16(),
        pa.timestamp("ns"),
        pa.decimal256(40, 0),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)
def test_types_hashed_differently_by_spark_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(InvalidRequestError, match="can't be part of a key"):
        key_hash([pa.nulls(1, kind)])


def test_key_columns_must_have_one_length() -> None:
    for columns in ([], [pa.nulls(1), pa.nulls(2)]):
        with pytest.raises(InvalidRequestError, match="one or more columns"):
            key_hash(columns)


# One key

USERS = pa.schema([("user", pa.int64()), ("day", pa.date32())])
KEY = {"day": date(2026, 2, 3), "user": 5}


def test_group_and_subtask_of_a_key_equal_those_of_spark(spark: SparkSession) -> None:
    assert KEY_HASH == "spark-murmur3-42"
    keys = pa.table({"user": [*range(-50, 50)], "day": [date(2026, 2, 3)] * 100}, USERS)
    routed = (
        frame_of(spark, keys)
        .selectExpr("user", "day", "pmod(hash(user, day), 100) as group")
        .selectExpr("user", "day", "group", "group * 7 div 100 as subtask")
    )
    for row in routed.collect():
        key = {"user": row.user, "day": row.day}
        assert key_group_of(key, USERS, 100) == row.group
        subtask = subtask_of_key(key, USERS, max_parallelism=100, parallelism=7)
        assert subtask == row.subtask
        assert row.group in key_group_range(100, 7, subtask)


@pytest.mark.parametrize("key", [{"user": 5}, KEY | {"x": 1}, {}])
def test_key_with_other_columns_is_refused(key: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError, match="'user', 'day'"):
        key_group_of(key, USERS, 128)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), "secret"),
        (pa.int8(), 1000),
        (pa.int64(), 1 << 63),
        (pa.int64(), 0.5),
        (pa.string(), 7),
        (pa.decimal128(4, 2), Decimal("12345.6")),
        (pa.timestamp("us"), datetime(2026, 1, 1, tzinfo=UTC)),
        (pa.timestamp("us", "UTC"), datetime(2026, 1, 1)),  # noqa: DTZ001
    ],
)
def test_bad_key_value_is_refused_without_showing_it(kind: pa.DataType, value: object) -> None:
    with pytest.raises(InvalidRequestError, match="key column 'secret-free'") as caught:
        key_group_of({"secret-free": value}, pa.schema([("secret-free", kind)]), 128)
    assert str(value) not in str(caught.value).replace("'secret-free'", "")


@pytest.mark.parametrize("max_parallelism", [0, -1, (1 << 15) + 1])
def test_max_parallelism_out_of_bounds_is_refused(max_parallelism: int) -> None:
    with pytest.raises(InvalidRequestError, match="max parallelism"):
        key_group_of(KEY, USERS, max_parallelism)
