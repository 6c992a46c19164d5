"""Restarts by `run`: which faults can pass, delays and limits, and the batches of a query that fails and is restarted."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from contracts.patience import wait_until
from jobs.job import Job, keyed_stream
from jobs.session import session_with
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

import holdfast as hf
from holdfast import StatefulFunction, keyed
from holdfast.backends import FunctionInitializationContext
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointCorruptedError,
    CheckpointDeclinedError,
    InvalidRequestError,
    StorageUnavailableError,
)
from holdfast.spark.supervision import can_pass_later
from holdfast.testing import ManualClock


class FakeQuery:
    """A query that ends with an error, or without one."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error
        self.is_stopped = False

    def awaitTermination(self, timeout: int | None = None) -> bool:  # noqa: N802  # Spark's names
        if self.error is not None:
            raise self.error
        return True

    def stop(self) -> None:
        self.is_stopped = True


def starts(*errors: BaseException | None) -> tuple[list[FakeQuery], Callable[[], Any]]:
    """Return queries that end with these errors, and a function that starts one after the other."""
    queries = [FakeQuery(error) for error in errors]
    remaining = iter(queries)
    return queries, lambda: next(remaining)


def test_passing_faults_are_retried_with_growing_delays() -> None:
    fault = StorageUnavailableError("as planned")
    queries, start = starts(fault, fault, fault, fault, None)
    clock = ManualClock()
    hf.run(start, first_delay=timedelta(seconds=1), max_delay=timedelta(seconds=3), clock=clock)
    assert [query.is_stopped for query in queries] == [True] * 4 + [False]
    assert clock.sleeps == [1, 2, 3, 3]


def test_restarts_are_limited_within_the_period() -> None:
    fault = StorageUnavailableError("as planned")
    _, start = starts(*[fault] * 4)
    with pytest.raises(StorageUnavailableError):
        hf.run(start, max_restarts=3, clock=ManualClock())
    clock = ManualClock()
    _, start = starts(*[fault] * 20, None)

    def start_later() -> Any:
        clock.advance(60)
        return start()

    hf.run(start_later, max_restarts=3, within=timedelta(seconds=150), clock=clock)


def test_lasting_faults_end_the_run_at_once() -> None:
    queries, start = starts(CheckpointCorruptedError("as planned"), None)
    with pytest.raises(CheckpointCorruptedError):
        hf.run(start, clock=ManualClock())
    assert not queries[1].is_stopped
    clock = ManualClock()
    with pytest.raises(ZeroDivisionError):
        hf.run(lambda: 1 // 0, clock=clock)  # type: ignore[arg-type,return-value]  # as users could
    assert clock.sleeps == []


def test_interrupted_run_stops_its_query() -> None:
    queries, start = starts(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        hf.run(start, clock=ManualClock())
    assert queries[0].is_stopped


def test_rules_of_the_user_replace_the_own_ones() -> None:
    _, start = starts(ValueError("as planned"), None)
    hf.run(start, is_passing=lambda error: "planned" in str(error), clock=ManualClock())
    _, start = starts(StorageUnavailableError("as planned"), None)
    with pytest.raises(StorageUnavailableError):
        hf.run(start, is_passing=lambda _: False, clock=ManualClock())


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (CheckpointDeclinedError("x"), True),
        (CheckpointConflictError.taken_over("file:///x", newest=3, own=2), False),
        (InvalidRequestError("x"), False),
        (KeyError("x"), False),
        (OSError("x"), True),
        (RuntimeError("Job aborted: ExecutorLostFailure (executor 1 exited)"), True),
        (RuntimeError("Traceback\nrequests.exceptions.ConnectionError: x"), True),
        (RuntimeError("Traceback\nKeyError: 'x'"), False),
        (RuntimeError("Traceback\npyarrow.lib.ArrowInvalid: x"), False),
        (RuntimeError("org.apache.spark.sql.AnalysisException: x"), False),
        (RuntimeError("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log."), False),
        (RuntimeError("Traceback\na [HF-STORE-FAILED]\nTraceback\nb [HF-CORRUPTED]"), False),
    ],
)
def test_fault_passes_by_its_code_or_its_class(error: Exception, *, passes: bool) -> None:
    assert can_pass_later(error) is passes


def test_bad_limits_are_refused() -> None:
    for arguments in ({"max_restarts": -1}, {"first_delay": timedelta(minutes=2)}):
        with pytest.raises(InvalidRequestError):
            hf.run(lambda: None, **arguments)  # type: ignore[arg-type,return-value]  # never called


class FailsInWorker(StatefulFunction):
    """Fails in a Python worker."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """There is no state."""

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.select(["missing"])


def test_query_is_restarted_after_faults_of_its_sink_and_of_the_store(job: Job) -> None:
    faults: list[Exception] = [OSError("no broker"), StorageUnavailableError("as planned")]
    written: dict[int, list[Any]] = {}

    def write(rows: DataFrame, batch_id: int) -> None:
        written[batch_id] = sorted(tuple(row) for row in rows.collect())
        if batch_id == 1 and faults:
            raise faults.pop()

    job.feed(files=3, rows=3)

    def start() -> Any:
        totals = keyed(keyed_stream(job), "key", uid="totals", parallelism=2).agg(n=hf.count())
        return job.start_keyed(totals, write)

    hf.run(start, first_delay=timedelta(0))
    assert faults == []
    assert written == {batch: [(key, batch + 1) for key in range(3)] for batch in range(3)}


@pytest.mark.parametrize("place", ["sink", "worker"])
def test_errors_of_user_code_end_the_run(job: Job, place: str) -> None:
    attempts = []

    def write(rows: DataFrame, _: int) -> None:
        attempts.append(rows.count())
        raise KeyError("as planned")

    job.feed(files=1, rows=3)

    def start() -> Any:
        by_key = keyed(keyed_stream(job), "key", uid="totals", parallelism=2)
        output = by_key.agg(n=hf.count()) if place == "sink" else by_key.process(FailsInWorker())
        return job.start_keyed(output, write)

    with pytest.raises(StreamingQueryException, match=r"KeyError|missing"):
        hf.run(start, first_delay=timedelta(0))
    assert len(attempts) <= 1


def test_standby_without_a_named_job_or_fencing_is_refused(job: Job) -> None:
    def run_with(silence: timedelta = timedelta(seconds=10), **settings: str) -> None:
        named = {
            f"spark.holdfast.{name.replace('_', '.')}": text for name, text in settings.items()
        }
        with session_with(job.spark, named):
            hf.run(lambda: None, standby_after=silence)  # type: ignore[arg-type,return-value]  # never called

    directory = f"file://{job.checkpoints}"
    with pytest.raises(InvalidRequestError, match="must be a timedelta >= 0:00:02"):
        run_with(timedelta(seconds=1), checkpoint_dir=directory, job_id="named")
    with pytest.raises(InvalidRequestError, match=r"needs spark\.holdfast\.job\.id"):
        run_with(checkpoint_dir=directory)
    with pytest.raises(InvalidRequestError, match=r"needs spark\.holdfast\.checkpoint\.dir"):
        run_with(job_id="named", checkpoint_storage="memory")
    with pytest.raises(
        InvalidRequestError, match=r"can't be used with spark\.holdfast\.checkpoint\.single-writer"
    ):
        with session_with(job.spark, {"spark.holdfast.checkpoint.single-writer": "true"}):
            run_with(checkpoint_dir=directory, job_id="named")
    assert not job.checkpoints.exists()


def test_active_driver_restarts_its_query_and_ends_the_job(job: Job) -> None:
    faults = [OSError("no broker")]

    def write(_: DataFrame, batch_id: int) -> None:
        if batch_id == 1 and faults:
            raise faults.pop()

    job.feed(files=2, rows=3)
    job.settings["spark.holdfast.job.id"] = "named"

    def start() -> Any:
        totals = keyed(keyed_stream(job), "key", uid="totals", parallelism=2).agg(n=hf.count())
        return job.start_keyed(totals, write)

    with session_with(job.spark, job.settings):
        hf.run(start, first_delay=timedelta(0), standby_after=timedelta(seconds=10))
        assert job.checkpoint_ids() == [2]
        epochs = job.job_directory / "_epoch"
        assert {file.name for file in epochs.glob("_*")} == {"_driver-1", "_driver-1-ended"}
        with pytest.raises(ZeroDivisionError):
            hf.run(lambda: 1 // 0, standby_after=timedelta(seconds=10))  # type: ignore[arg-type,return-value]
        assert {file.name for file in epochs.glob("_*")} == {"_driver-2", "_driver-2-released"}


def test_replaced_driver_stops_its_query(job: Job) -> None:
    """A standby has published a higher term before the query starts, and while it runs."""
    job.feed(files=1, rows=3)
    job.settings["spark.holdfast.job.id"] = "named"
    queries = []

    def start() -> Any:
        totals = keyed(keyed_stream(job), "key", uid="totals", parallelism=2).agg(n=hf.count())
        with session_with(job.spark, job.settings):
            writer = totals.writeStream.option("checkpointLocation", str(job.spark_checkpoint))
            queries.append(writer.foreachBatch(lambda *_: None).start())
        wait_until(lambda: job.checkpoints.exists() and job.checkpoint_ids(), "no batch")
        (job.job_directory / "_epoch" / "_driver-2").touch()
        return queries[-1]

    with session_with(job.spark, job.settings):
        with pytest.raises(CheckpointConflictError, match="a standby has taken over") as raised:
            hf.run(start, standby_after=timedelta(seconds=2), clock=LateClock())
    assert raised.value.kind == "taken-over"
    assert [query.isActive for query in queries] == [False]


def test_active_driver_resumes_after_a_late_commit_of_the_former(job: Job) -> None:
    job.settings["spark.holdfast.job.id"] = "named"
    attempts, start = starts(
        RuntimeError("chk-2/_metadata exists [HF-EXISTS]"),
        RuntimeError("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log."),
        None,
    )
    with session_with(job.spark, job.settings):
        hf.run(start, first_delay=timedelta(0), standby_after=timedelta(seconds=2))
    assert [attempt.is_stopped for attempt in attempts] == [True, True, False]


class LateClock(ManualClock):
    """A clock that makes every heartbeat late."""

    def monotonic_s(self) -> float:
        self.advance(100)
        return super().monotonic_s()
