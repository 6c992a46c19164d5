"""State of an operator begins a query with Spark's own `transformWithState`."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

import pytest
from jobs.job import Job
from jobs.processor_jobs import CallbackProcessor, processor_job
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
    """The rows of the source, by a key that can be null; one column of it is called as values are in states."""
    value = F.when(F.col("id") % 3 == 2, None).otherwise(F.concat(F.lit("key "), F.col("id") % 3))
    part = F.when(F.col("id") % 4 == 3, None).otherwise(F.col("id") % 4)
    half = (F.col("id") / 2).cast("decimal(10, 1)")
    rows = job.stream().select(
        value.alias("value"), part.alias("part"), "id", "at", half.alias("half")
    )
    return rows.withWatermark("at", "0 seconds")


def run(job: Job, output: Any, location: Path, settings: dict[str, str]) -> Batches:
    """Read everything that is there."""
    batches: dict[int, list[tuple[Any, ...]]] = {}

    def write(rows: DataFrame, batch_id: int) -> None:
        batches[batch_id] = sorted((tuple(row) for row in rows.collect()), key=str)

    writer = output.writeStream.queryName("returned").outputMode("update")
    writer = writer.option("checkpointLocation", str(location)).trigger(availableNow=True)
    with session_with(job.spark, settings):
        writer.foreachBatch(write).start().awaitTermination()
    return [batches[batch_id] for batch_id in sorted(batches)]


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
def test_a_query_goes_on_in_spark_as_if_it_had_always_been_there(job: Job) -> None:
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
    for file in job.source.iterdir():  # a new query reads all files that are there
        file.unlink()
    going_on = native(job, moved.processor, initialState=moved.rows)
    timers = 0
    for seconds in ((14, 15, 25, 25), (32, 33, 60, 61, 62)):
        job.feed_at(*(second * SECOND for second in seconds))
        expected = run(job, native(job), always, ROCKSDB)
        assert run(job, going_on, returned, ROCKSDB) == expected
        timers += sum("timer" in told for batch in expected for *_, told in batch)
        going_on = native(job)  # by the user's processor alone, once the first batch is done
    assert timers > 10


def kept(
    directory: Path, processor: AllTypes, *batches: tuple[int, list[Any]], **options: Any
) -> list[str]:
    """Have Holdfast keep rows, in batches of some times; gives what the processor tells of each key then."""
    job = processor_job(f"file://{directory}", processor, output=OUT, parallelism=2, **options)
    for time_ms, rows in batches:
        job.run([{"k": key, "v": number} for key, number in rows], times=(time_ms, 0))
    told = job.run([{"k": key, "v": None} for key in KEYS], times=(batches[-1][0], 0))
    return sorted(row["out"] for row in told)


def pointer(directory: Path) -> str:
    return f"file://{max((directory / 'job').glob('chk-*'))}"


def told_by_spark(
    spark: SparkSession, pointer: str, processor: AllTypes, flavour: str = "row"
) -> list[str]:
    """What the processor tells of each key in Spark's own operator, over what the checkpoint has."""
    moved = spark_initial_state(spark, pointer, processor)
    grouped = spark.createDataFrame([(key, None) for key in KEYS], "k string, v long").groupBy("k")
    way = grouped.transformWithState if flavour == "row" else grouped.transformWithStateInPandas
    # Spark cuts what a key has into pieces of two rows: its state comes in the first ones.
    pieces = {"spark.sql.execution.arrow.maxRecordsPerBatch": "2"}
    with session_with(spark, ROCKSDB | pieces):
        rows = way(
            moved.processor, AllTypes.schema, "Update", moved.time_mode, initialState=moved.rows
        ).collect()
    return sorted(row.out for row in rows)


@pytest.mark.exhaustive
@pytest.mark.parametrize("flavour", ["row", "pandas"])
def test_values_of_all_types_are_the_same_in_spark(
    spark: SparkSession, tmp_path: Path, flavour: Literal["row", "pandas"]
) -> None:
    rows = [("a", 1), ("a", 3), (None, 4)]
    expected = kept(tmp_path, AllTypes(), (1, rows))
    processor = AllTypes(is_pandas=flavour == "pandas")
    assert told_by_spark(spark, pointer(tmp_path), processor, flavour) == expected


@pytest.mark.exhaustive
def test_what_has_expired_stays_behind(spark: SparkSession, tmp_path: Path) -> None:
    now_ms = time.time_ns() // 1_000_000
    long_ago = now_ms - 2 * HOUR_MS
    processor = AllTypes(ttl_ms=HOUR_MS)
    expected = kept(
        tmp_path,
        processor,
        (long_ago, [("a", 1), ("", 7)]),
        (now_ms, [("a", 2), (None, 4)]),
        time_mode="ProcessingTime",
    )
    assert told_by_spark(spark, pointer(tmp_path), processor) == expected
    assert any("number 2" in told and "number 1'" not in told for told in expected)
    moved = spark_initial_state(spark, pointer(tmp_path), processor)
    assert any("the ages of ['value', 'changed', 'map']" in lost for lost in moved.lost)


def test_spark_needs_nothing_of_holdfast_to_run_the_processor(
    spark: SparkSession, tmp_path: Path
) -> None:
    kept(tmp_path / "state", AllTypes(), (1, [("a", 1)]))
    moved = spark_initial_state(spark, pointer(tmp_path / "state"), AllTypes())
    pickled = tmp_path / "processor"
    pickled.write_bytes(cloudpickle.dumps(moved.processor))  # type: ignore[no-untyped-call]
    program = "import pickle, sys; sys.modules['holdfast'] = None; pickle.load(open(sys.argv[1], 'rb')).close()"
    subprocess.run([sys.executable, "-c", program, pickled], check=True)


def test_state_that_the_class_does_not_declare_so_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    def stored(handle: Any) -> list[Any]:
        return [handle.getValueState("n", "n int"), handle.getListState("l", "s string")]

    def keep(_told: Any, states: Any, _key: Any, _rows: Any) -> None:
        states[0].update((1,))
        states[1].appendValue(("x",))

    job = processor_job(f"file://{tmp_path}", CallbackProcessor(stored, keep))
    job.run([{"k": "a", "v": 1}])
    at = pointer(tmp_path)

    def refused(declare: Any, match: str, **options: Any) -> None:
        with pytest.raises(InvalidRequestError, match=match):
            spark_initial_state(spark, at, CallbackProcessor(init=declare), **options)

    refused(stored, "there is no operator 'sums'; name one of ", operator="sums")
    refused(
        lambda handle: handle.getValueState("n", "n int"),
        r"states \['l'\], which the processor does not",
    )
    refused(
        lambda handle: [handle.getValueState("n", "n long"), handle.getListState("l", "s string")],
        "'n' is stored as value of struct<n:int>, and the processor declares value of struct<n:bigint>",
    )
    refused(
        lambda handle: [handle.getValueState("n", "n int"), handle.getValueState("l", "s string")],
        r"'l' is stored as list of array<struct<s:string>>, and the processor declares value of struct<s:string>",
    )
    with pytest.raises(InvalidRequestError, match="int is not a StatefulProcessor"):
        spark_initial_state(spark, at, 5)  # type: ignore[arg-type]

    def gives_up(handle: Any) -> list[Any]:
        handle.deleteIfExists("l")
        return [handle.getValueState("n", "n int")]

    assert list(spark_initial_state(spark, at, CallbackProcessor(init=gives_up)).kept) == ["n"]


def test_an_operator_without_state_of_a_processor_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    processor_job(f"file://{tmp_path}/none", CallbackProcessor()).run([{"k": "a", "v": 1}])
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
