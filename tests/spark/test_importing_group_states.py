"""Import of the state of a stopped query with Spark's own `applyInPandasWithState`."""

import shutil
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from jobs.job import Job, run_keyed
from jobs.session import ROCKSDB
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState

import holdfast
from holdfast import import_spark_state, keyed, restore_savepoint
from holdfast.cli.command_line import main
from holdfast.errors import InvalidRequestError

SECOND = 1_000_000
UID = "counts"
EVENT = "EventTimeTimeout"

pytestmark = pytest.mark.exhaustive  # each begins with a query of Spark


def count(key: tuple[Any, ...], frames: Any, state: GroupState) -> Iterator[pd.DataFrame]:
    """Count rows, and set a timeout; a key that times out keeps a timeout without a value once, and then nothing."""
    n, latest_ms = (state.getOption or (0,))[0], 0
    if state.hasTimedOut:
        if state.exists:
            state.remove()
            state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 2000)
        else:
            state.remove()
        yield pd.DataFrame({"key": [key[0]], "n": [-n]})
        return
    for frame in frames:
        n += len(frame)
        latest_ms = max(latest_ms, int(frame["ms"].max()))
    state.update((n,))
    state.setTimeoutTimestamp(max(latest_ms + 3000, state.getCurrentWatermarkMs()))
    yield pd.DataFrame({"key": [key[0]], "n": [n]})


def rows_of(job: Job) -> DataFrame:
    """Return the rows of the source with a nullable key."""
    key = F.when(F.col("id") % 3 == 2, None).otherwise(F.concat(F.lit("key "), F.col("id") % 3))
    rows = job.stream().select(key.alias("key"), "id", "at", F.unix_millis("at").alias("ms"))
    return rows.withWatermark("at", "0 seconds")


def output(grouped: Any, timeout: str = EVENT) -> Any:
    """Return the output of the function over Spark's groups or Holdfast's."""
    return grouped.applyInPandasWithState(count, "key string, n long", "n long", "update", timeout)


@pytest.fixture
def stopped_job(job: Job) -> Job:
    """Return a stopped job that has run its function in Spark's own operator, with pending timeouts."""
    job.feed_at(0, 1 * SECOND, 2 * SECOND)
    job.feed_at(10 * SECOND)
    job.feed_at(11 * SECOND)  # the null key times out
    run_keyed(job, output(rows_of(job).groupBy("key")), settings=ROCKSDB)
    return job


def test_imported_function_continues_as_if_never_moved(stopped_job: Job) -> None:
    job = stopped_job
    left = f"{job.directory}/left"
    shutil.copytree(job.spark_checkpoint, left)
    job.feed_at(*(moment * SECOND for moment in (1, 14, 30, 31)))  # the first row is late
    job.feed_at(60 * SECOND)
    job.feed_at(90 * SECOND)  # the null key times out again
    expected = run_keyed(job, output(rows_of(job).groupBy("key")), settings=ROCKSDB)

    pointer = import_spark_state(
        f"file://{left}", f"file://{job.directory}/sp", uid=UID, parallelism=3, timeout=EVENT
    )
    values = holdfast.read_state(pointer, UID, "state").num_rows
    timeouts = holdfast.read_state(pointer, UID, "timeout").num_rows
    assert 0 < values < timeouts
    restored = restore_savepoint(
        pointer, f"file://{job.directory}/moved", checkpoint_dir=f"file://{job.checkpoints}"
    )
    settings = {**restored.settings, **ROCKSDB}
    moved = output(keyed(rows_of(job), "key", uid=UID, parallelism=2))
    seen = run_keyed(job, moved, restored.checkpoint_location, settings)
    assert _with_rows(seen) == _with_rows(expected)
    assert any(n <= 0 for rows in _with_rows(seen) for _, n in rows)
    assert min(expected) == restored.batch_id + 1


def _with_rows(batches: dict[int, Any]) -> list[Any]:
    """Return the batches with rows: Spark runs one without rows whenever the watermark has moved."""
    return [rows for _, rows in sorted(batches.items()) if rows]


def test_command_without_the_timeout_of_the_query_is_refused(
    stopped_job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["import", "spark-state", f"file://{stopped_job.spark_checkpoint}", "--uid", UID]
    words += ["--parallelism", "2", f"file://{stopped_job.directory}/savepoints"]
    assert main([*words, "--dry-run"]) == 2
    assert "the timeout must be one of" in capsys.readouterr().err
    assert main([*words, "--dry-run", "--ttl", "state=5", "--timeout", EVENT]) == 2
    assert "have no time to live" in capsys.readouterr().err
    assert main([*words, "--dry-run", "--timeout", EVENT]) == 0
    report = capsys.readouterr().err
    assert "state: value of struct<n:bigint>" in report
    assert "timeout: timeouts of event time" in report


def test_state_without_timeouts_is_imported(job: Job) -> None:
    job.feed(files=1, rows=6)

    def count_only(key: Any, frames: Any, state: GroupState) -> Any:
        state.update((sum(map(len, frames)),))
        return []

    rows = job.stream().selectExpr("id % 3 as key", "id")
    totals = rows.groupBy("key").applyInPandasWithState(
        count_only, "n long", "n long", "update", "NoTimeout"
    )
    location = f"file://{job.spark_checkpoint}"
    run_keyed(job, totals, settings=ROCKSDB)
    with pytest.raises(InvalidRequestError, match="the query has no timeouts"):
        import_spark_state(location, uid=UID, parallelism=1, timeout=EVENT)
    pointer = import_spark_state(location, f"file://{job.directory}/sp", uid=UID, parallelism=1)
    values = holdfast.read_state(pointer, UID, "state")["value"].to_pylist()
    assert values == [{"n": 2}] * 3
