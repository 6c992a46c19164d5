"""State of an operator as the initial state of a query with Spark's own `transformWithState`."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

import pytest
from jobs.job import Job, run_keyed
from jobs.processor_jobs import CallbackProcessor, processor_job, run_callbacks
from jobs.processors import AllTypes, Waiting
from jobs.session import ROCKSDB, session_with
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from holdfast import keyed, spark_initial_state, write_savepoint
from holdfast.errors import InvalidRequestError

SECOND = 1_000_000
HOUR_MS = 3_600_000
KEYS = ["a", "", None]
OUT = StructType([StructField("out", StringType())])

Batches = list[list[tuple[Any, ...]]]


def rows_of(job: Job) -> DataFrame:
    """Return the rows of the source with a nullable key; one of its columns has the name of the value column of states."""
    value = F.when(F.col("id") % 3 == 2, None).otherwise(F.concat(F.lit("key "), F.col("id") % 3))
    part = F.when(F.col("id") % 4 == 3, None).otherwise(F.col("id") % 4)
    half = (F.col("id") / 2).cast("decimal(10, 1)")
    rows = job.stream().select(
        value.alias("value"), part.alias("part"), "id", "at", half.alias("half")
    )
    return rows.withWatermark("at", "0 seconds")


def run(job: Job, output: Any, location: Path, settings: dict[str, str]) -> Batches:
    """Read all files of the source, and return the output of each batch."""
    return list(run_keyed(job, output, location, settings).values())


def native(job: Job, processor: Any = None, **options: Any) -> DataFrame:
    return (
        rows_of(job)
        .groupBy("value", "part")
        .transformWithState(
            processor or Waiting(), Waiting.schema, "Update", "EventTime", **options
        )
    )


def newest(job: Job) -> str:
    return f"file://{job.job_directory}/chk-{job.checkpoint_ids()[-1]}"


@pytest.mark.exhaustive
def test_query_moved_to_spark_continues_as_if_it_began_there(job: Job) -> None:
    always, returned = job.directory / "always", job.directory / "returned"
    # In its first batch Spark drops rows of 1970-01-01 00:00:00 as late.
    job.feed_at(*(max(1, second) * SECOND for second in range(13)))
    run(job, native(job), always, ROCKSDB)
    by_key = keyed(rows_of(job), ["value", "part"], uid="waiting", parallelism=3)
    ours = by_key.transformWithState(Waiting(), Waiting.schema, "Update", "EventTime")
    run(job, ours, job.spark_checkpoint, job.settings)

    moved = spark_initial_state(job.spark, newest(job), Waiting())
    assert moved.time_mode == "EventTime"
    assert list(moved.kept) == ["last", "ids", "days", "timers"]
    assert any("the watermark, which was 12000 ms" in lost for lost in moved.lost)
    assert any("keys whose ['part'] are null" in lost for lost in moved.lost)
    (source,) = moved.sources
    assert source.startswith('{"logOffset":')
    for file in job.source.iterdir():  # a new query reads all files
        file.unlink()
    moved_query = native(job, moved.processor, initialState=moved.rows)
    timers = 0
    for seconds in ((14, 15, 25, 25), (32, 33, 60, 61, 62)):
        job.feed_at(*(second * SECOND for second in seconds))
        expected = run(job, native(job), always, ROCKSDB)
        assert run(job, moved_query, returned, ROCKSDB) == expected
        timers += sum("timer" in kept for batch in expected for *_, kept in batch)
        moved_query = native(job)  # only with the user's processor, after the first batch
    assert timers > 10


def keep_in_holdfast(
    directory: Path, processor: AllTypes, *batches: tuple[int, list[Any]], **options: Any
) -> list[str]:
    """Run batches with Holdfast, and return what the processor then yields for each key."""
    job = processor_job(f"file://{directory}", processor, output=OUT, parallelism=2, **options)
    for time_ms, rows in batches:
        job.run([{"k": key, "v": number} for key, number in rows], times=(time_ms, 0))
    rows_out = job.run([{"k": key, "v": None} for key in KEYS], times=(batches[-1][0], 0))
    return sorted(row["out"] for row in rows_out)


def pointer(directory: Path) -> str:
    return f"file://{max((directory / 'job').glob('chk-*'))}"


def read_in_spark(
    spark: SparkSession, pointer: str, processor: AllTypes, flavour: str = "row"
) -> list[str]:
    """Return what the processor yields for each key in Spark's own operator, with the state of the checkpoint."""
    moved = spark_initial_state(spark, pointer, processor)
    grouped = spark.createDataFrame([(key, None) for key in KEYS], "k string, v long").groupBy("k")
    is_row = flavour == "row"
    transform = grouped.transformWithState if is_row else grouped.transformWithStateInPandas
    # Spark passes a key's rows in pieces of two: its state is in the first ones.
    pieces = {"spark.sql.execution.arrow.maxRecordsPerBatch": "2"}
    with session_with(spark, ROCKSDB | pieces):
        rows = transform(
            moved.processor, AllTypes.schema, "Update", moved.time_mode, initialState=moved.rows
        ).collect()
    return sorted(row.out for row in rows)


@pytest.mark.exhaustive
@pytest.mark.parametrize("flavour", ["row", "pandas"])
def test_values_of_all_types_are_the_same_in_spark(
    spark: SparkSession, tmp_path: Path, flavour: Literal["row", "pandas"]
) -> None:
    rows = [("a", 1), ("a", 3), (None, 4)]
    expected = keep_in_holdfast(tmp_path, AllTypes(), (1, rows))
    processor = AllTypes(is_pandas=flavour == "pandas")
    assert read_in_spark(spark, pointer(tmp_path), processor, flavour) == expected


@pytest.mark.exhaustive
def test_expired_values_are_not_moved(spark: SparkSession, tmp_path: Path) -> None:
    now_ms = time.time_ns() // 1_000_000
    long_ago = now_ms - 2 * HOUR_MS
    processor = AllTypes(ttl_ms=HOUR_MS)
    expected = keep_in_holdfast(
        tmp_path,
        processor,
        (long_ago, [("a", 1), ("", 7)]),
        (now_ms, [("a", 2), (None, 4)]),
        time_mode="ProcessingTime",
    )
    assert read_in_spark(spark, pointer(tmp_path), processor) == expected
    assert any("number 2" in text and "number 1'" not in text for text in expected)
    moved = spark_initial_state(spark, pointer(tmp_path), processor)
    assert any("the ages of ['value', 'changed', 'map']" in lost for lost in moved.lost)


def test_moved_processor_runs_without_holdfast(spark: SparkSession, tmp_path: Path) -> None:
    keep_in_holdfast(tmp_path / "state", AllTypes(), (1, [("a", 1)]))
    moved = spark_initial_state(spark, pointer(tmp_path / "state"), AllTypes())
    pickled = tmp_path / "processor"
    pickled.write_bytes(cloudpickle.dumps(moved.processor))  # type: ignore[no-untyped-call]
    program = "import pickle, sys; sys.modules['holdfast'] = None; pickle.load(open(sys.argv[1], 'rb')).close()"
    subprocess.run([sys.executable, "-c", program, pickled], check=True)


@pytest.mark.exhaustive
def test_state_with_other_declarations_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    def declare_both(handle: Any) -> list[Any]:
        return [handle.getValueState("n", "n int"), handle.getListState("l", "s string")]

    def keep(_: Any, states: Any, _key: Any, _rows: Any) -> None:
        states[0].update((1,))
        states[1].appendValue(("x",))

    run_callbacks(f"file://{tmp_path}", declare_both, keep)
    at = pointer(tmp_path)

    def check_refused(declare: Any, match: str, **options: Any) -> None:
        with pytest.raises(InvalidRequestError, match=match):
            spark_initial_state(spark, at, CallbackProcessor(init=declare), **options)

    check_refused(declare_both, "there is no operator 'sums'; name one of ", operator="sums")
    check_refused(
        lambda handle: handle.getValueState("n", "n int"),
        r"states \['l'\], which the processor does not",
    )
    check_refused(
        lambda handle: [handle.getValueState("n", "n long"), handle.getListState("l", "s string")],
        "'n' is stored as value of struct<n:int>, and the processor declares value of struct<n:bigint>",
    )
    check_refused(
        lambda handle: [handle.getValueState("n", "n int"), handle.getValueState("l", "s string")],
        r"'l' is stored as list of array<struct<s:string>>, and the processor declares value of struct<s:string>",
    )
    with pytest.raises(InvalidRequestError, match="int is not a StatefulProcessor"):
        spark_initial_state(spark, at, 5)  # type: ignore[arg-type]

    def delete_list(handle: Any) -> list[Any]:
        handle.deleteIfExists("l")
        return [handle.getValueState("n", "n int")]

    assert list(spark_initial_state(spark, at, CallbackProcessor(init=delete_list)).kept) == ["n"]


def test_operator_without_a_processor_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    run_callbacks(f"file://{tmp_path}/none")
    with pytest.raises(InvalidRequestError, match="operator 'operator' has no keyed state"):
        spark_initial_state(spark, pointer(tmp_path / "none"), CallbackProcessor())
    rows = spark.range(3).withColumnRenamed("id", "value")
    states = {("first", "rows"): rows, ("second", "rows"): rows}
    written = write_savepoint(f"file://{tmp_path}/written", states)
    with pytest.raises(
        InvalidRequestError, match=r"no operator is named; name one of \['first', 'second'\]"
    ):
        spark_initial_state(spark, written, CallbackProcessor())
    with pytest.raises(
        InvalidRequestError, match=r"'first' has not run a processor; it has states \['rows'\]"
    ):
        spark_initial_state(spark, written, CallbackProcessor(), operator="first")
