"""Import of the state of a stopped query with Spark's own `transformWithState`."""

import shutil
import threading

import pyarrow.compute as pc
import pytest
from jobs.job import Job, run_keyed
from jobs.processors import Remembering, TotalsProcessor
from jobs.session import ROCKSDB, session_with
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import holdfast
from holdfast import import_spark_state, keyed, restore_savepoint
from holdfast.cli.command_line import main
from holdfast.errors import InvalidRequestError

SECOND = 1_000_000
HOUR_MS = 3_600_000

pytestmark = pytest.mark.exhaustive  # each begins with a query of Spark


def rows_of(job: Job) -> DataFrame:
    """Return the rows of the source with a nullable key, whose name is also that of a column of states."""
    key = F.when(F.col("id") % 3 == 2, None).otherwise(F.concat(F.lit("key "), F.col("id") % 3))
    rows = job.stream().select(
        key.alias("key"), "id", "at", "name", (F.col("id") / 2).cast("decimal(10, 1)").alias("half")
    )
    return rows.withWatermark("at", "0 seconds")


def native(job: Job) -> DataFrame:
    return (
        rows_of(job)
        .groupBy("key")
        .transformWithState(Remembering(), Remembering.schema, "Update", "EventTime")
    )


@pytest.fixture
def stopped_job(job: Job) -> Job:
    """Return a stopped job that has run its processor in Spark's own operator, with pending timers."""
    job.feed_at(0, 1 * SECOND, 2 * SECOND, 5 * SECOND)
    job.feed_at(10 * SECOND, 11 * SECOND)
    run_keyed(job, native(job), settings=ROCKSDB)
    return job


def test_imported_query_continues_as_if_never_moved(
    stopped_job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    job = stopped_job
    left = f"{job.directory}/left"
    shutil.copytree(job.spark_checkpoint, left)
    job.feed_at(*(moment * SECOND for moment in (1, 14, 30, 31)))  # the first row is late
    job.feed_at(*(moment * SECOND for moment in (60, 61, 62)))
    expected = run_keyed(job, native(job), settings=ROCKSDB)

    savepoints = f"file://{job.directory}/savepoints"
    pointer = import_spark_state(f"file://{left}", savepoints, uid="remembering", parallelism=3)
    assert "loses the sink" in caplog.text
    restored = restore_savepoint(
        pointer, f"file://{job.directory}/moved", checkpoint_dir=f"file://{job.checkpoints}"
    )
    grouped = keyed(rows_of(job), "key", uid="remembering", parallelism=2)
    output = grouped.transformWithState(Remembering(), Remembering.schema, "Update", "EventTime")
    settings = {**restored.settings, **ROCKSDB}
    assert run_keyed(job, output, restored.checkpoint_location, settings) == expected
    timers = [row for rows in expected.values() for row in rows if row[1] % 1000 == 0]
    assert min(expected) == restored.batch_id + 1
    assert timers


@pytest.fixture
def location_with_ttl(job: Job) -> str:
    """Return the checkpointLocation of a stopped query whose states live for an hour."""
    job.feed_at(0, 1 * SECOND, 2 * SECOND, 5 * SECOND)
    done = threading.Event()

    def write(rows: DataFrame, batch_id: int) -> None:
        rows.collect()
        if batch_id == 1:  # so Spark has committed the first
            done.set()

    output = (
        rows_of(job)
        .groupBy("key")
        .transformWithState(
            Remembering(HOUR_MS, HOUR_MS), Remembering.schema, "Update", "ProcessingTime"
        )
    )
    writer = output.writeStream.foreachBatch(write).outputMode("update")
    with session_with(job.spark, ROCKSDB):
        query = writer.option("checkpointLocation", str(job.spark_checkpoint)).start()
    try:
        assert done.wait(120)
    finally:
        query.stop()
    return f"file://{job.spark_checkpoint}"


def test_imported_values_expire_as_in_spark(job: Job, location_with_ttl: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"\['count', 'ids', 'names'\] have a time to"):
        import_spark_state(location_with_ttl, uid="remembering", parallelism=1)
    ttl_ms = dict.fromkeys(("count", "ids", "names"), HOUR_MS)
    savepoints = f"file://{job.directory}/savepoints"
    pointer = import_spark_state(
        location_with_ttl, savepoints, uid="remembering", parallelism=2, ttl_ms=ttl_ms
    )
    reader = job.spark.read.format("statestore").option("path", location_with_ttl)
    times = {
        name: {
            row[0] - HOUR_MS
            for row in reader.option("stateVarName", name).load().select(column).collect()
        }
        for name, column in (
            ("count", "value.ttlExpirationMs"),
            ("ids", "list_element.ttlExpirationMs"),
            ("names", "user_map_value.ttlExpirationMs"),
        )
    }
    for name, moments in times.items():
        state = holdfast.read_state(pointer, "remembering", name)
        changed = pc.unique(state["changed"].cast("int64")).to_pylist()
        assert set(changed) == moments, name
    elements = holdfast.read_state(pointer, "remembering", "ids")["value"].to_pylist()
    assert {each["ts"] for elements_of_key in elements for each in elements_of_key} == times["ids"]

    restored = restore_savepoint(
        pointer, f"file://{job.directory}/moved", checkpoint_dir=f"file://{job.checkpoints}"
    )
    job.feed_at(7 * SECOND)
    grouped = keyed(rows_of(job), "key", uid="remembering", parallelism=2)
    output = grouped.transformWithState(
        Remembering(HOUR_MS, HOUR_MS), Remembering.schema, "Update", "ProcessingTime"
    )
    settings = {**restored.settings, **ROCKSDB}
    batches = run_keyed(job, output, restored.checkpoint_location, settings)
    ((_, _, remembered),) = batches[restored.batch_id + 1]
    assert remembered.startswith("[(2, ")  # a row before the move, and one after it


def test_dry_run_reports_losses_and_writes_nothing(
    stopped_job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    savepoints = stopped_job.directory / "savepoints"
    words = [
        "import",
        "spark-state",
        f"file://{stopped_job.spark_checkpoint}",
        "--uid",
        "remembering",
    ]
    words += ["--parallelism", "2", f"file://{savepoints}"]
    assert main([*words, "--dry-run"]) == 0
    dry = capsys.readouterr()
    assert dry.out == ""
    assert "names: map of struct<name:string,parts:array<string>> by struct<id:" in dry.err
    assert "timers: timers of event time" in dry.err
    assert "lost:" in dry.err
    assert not savepoints.exists()

    assert main(words) == 0
    done = capsys.readouterr()
    assert done.err.splitlines()[:-1] == dry.err.splitlines()[:-1]
    states = holdfast.states(done.out.strip())
    assert set(states["state"].to_pylist()) >= {"count", "ids", "names"}


def test_state_of_a_query_without_a_time_mode_is_imported(job: Job) -> None:
    job.feed(files=1, rows=2)
    rows = job.stream().selectExpr("id as key", "id as value").groupBy("key")
    totals = rows.transformWithState(
        TotalsProcessor(), "key long, total long, rows long", "Update", "None"
    )
    location = str(job.spark_checkpoint)
    run_keyed(job, totals, settings=ROCKSDB)
    pointer = import_spark_state(
        f"file://{location}", f"file://{job.directory}/sp", uid="totals", parallelism=1
    )
    values = holdfast.read_state(pointer, "totals", "total")["value"].to_pylist()
    assert sorted(each["total"] for each in values) == [0, 1]


def test_state_of_other_operators_is_refused(job: Job) -> None:
    job.feed(files=1, rows=3)
    run_keyed(job, rows_of(job).groupBy("key").count(), settings=ROCKSDB)
    location = f"file://{job.spark_checkpoint}"
    with pytest.raises(InvalidRequestError, match=r"state of operators .*stateStoreSave"):
        import_spark_state(location, uid="counts", parallelism=1)


@pytest.mark.parametrize("time", ["seen=", "=5", "5", "seen=soon"])
def test_command_refuses_a_bad_time_to_live(time: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["import", "spark-state", "file:///nothing", "--uid", "u", "--parallelism", "1"]
    assert main([*words, "--ttl", time]) == 2
    assert "--ttl takes STATE=MS" in capsys.readouterr().err
