"""Sinks with state."""

from pathlib import Path
from unittest import mock

import pytest
from jobs.job import Job
from jobs.operators import Groups
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from holdfast import CheckpointedSink, stateful_query
from holdfast.errors import InvalidRequestError, StorageUnavailableError
from holdfast.spark.operators import Sink
from holdfast.spark.query import StatefulQuery

ALLOW = "spark.holdfast.checkpoint.allow-non-restored-state"


class RecordingSink:
    """Records its calls, and counts its batches."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []
        self.taken = 0

    def initialize_state(self, state: bytes | None) -> None:
        self.calls.append(("initialize", state))
        self.taken = int(state or b"0")

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        self.calls.append(("take", batch_id))
        self.taken += 1
        rows.write.format("noop").mode("overwrite").save()

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        self.calls.append(("snapshot", checkpoint_id))
        return str(self.taken).encode()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.calls.append(("complete", checkpoint_id))

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.calls.append(("aborted", checkpoint_id))


class RecordingProcess(RecordingSink):
    """A function of a query that does the same."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.operator = job.operator(Groups(10), sink=None)

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        super().__call__(self.operator.apply(rows), batch_id)


def run_sink(job: Job, *, as_process: bool) -> RecordingSink:
    """Run a job with a new sink, of its operator or as the function of the query."""
    if as_process:
        process = RecordingProcess(job)
        job.run(stateful_query(process, process.operator))
        return process
    sink = RecordingSink()
    job.run(job.operator(Groups(10), sink=sink))
    return sink


@pytest.mark.parametrize("as_process", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_sink_resumes_from_the_last_checkpoint(job: Job, *, as_process: bool) -> None:
    for state, batch in ((None, 0), (b"1", 1)):
        job.feed(files=1)
        sink = run_sink(job, as_process=as_process)
        assert isinstance(sink, CheckpointedSink)
        assert sink.calls == [
            ("initialize", state),
            *([("complete", batch)] if batch else []),
            ("take", batch),
            ("snapshot", batch + 1),
            ("complete", batch + 1),
        ]
    job.repeat_last_batch()
    again = run_sink(job, as_process=as_process)
    assert again.calls == [("initialize", b"2"), ("complete", 2)]


@pytest.mark.exhaustive
def test_state_of_a_failed_checkpoint_is_dropped(job: Job) -> None:
    job.feed(files=1)
    sink = RecordingSink()
    operator = job.operator(Groups(10), sink=sink)
    commit = "holdfast.spark.query.coordinator.complete_checkpoint"
    with mock.patch(commit, side_effect=StorageUnavailableError("as planned")):
        with pytest.raises(StreamingQueryException, match="as planned"):
            job.run(operator)
    assert sink.calls[-1] == ("aborted", 1)
    sink.calls.clear()
    job.run(operator)
    assert sink.calls[0] == ("initialize", None)
    assert sink.taken == 1


@pytest.mark.exhaustive
def test_query_without_the_sink_is_refused_unless_allowed(job: Job) -> None:
    job.feed(files=1)
    job.run(job.operator(Groups(10), sink=RecordingSink()))
    job.feed(files=1)
    with pytest.raises(StreamingQueryException, match=r"states of sinks under \['sink/operator'\]"):
        job.run(job.operator(Groups(10)))
    assert job.checkpoint_ids() == [1]
    job.settings[ALLOW] = "true"
    job.run(job.operator(Groups(10)))
    assert job.checkpoint_ids() == [2]


@pytest.mark.exhaustive
def test_sink_state_other_than_bytes_is_refused(job: Job) -> None:
    class Wrong(RecordingSink):
        def snapshot_state(self, checkpoint_id: int) -> bytes:
            return checkpoint_id  # type: ignore[return-value]

    job.feed(files=1)
    with pytest.raises(
        StreamingQueryException, match="snapshot_state of Wrong must return bytes, got int"
    ):
        job.run(job.operator(Groups(10), sink=Wrong()))
    assert job.checkpoint_ids() == []


@pytest.mark.exhaustive
def test_sink_with_state_serves_one_query(job: Job, tmp_path: Path) -> None:
    other = Job(job.spark, tmp_path / "other")
    operator = job.operator(Groups(10), sink=RecordingSink())
    for query_job in (job, other):
        query_job.feed(files=1)
    job.run(operator)
    with pytest.raises(StreamingQueryException, match="serves one query"):
        other.run(operator)
    assert other.checkpoint_ids() == []


class Forwarding:
    """A function of a query that calls two sinks, the second one only in some batches."""

    def __init__(self, job: Job) -> None:
        self.operator = job.operator(Groups(10), sink=None, persist=True)
        self.sinks = {"all": RecordingSink(), "later": RecordingSink()}

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        rows = self.operator.apply(rows)
        self.sinks["all"](rows, batch_id)
        if batch_id:
            self.sinks["later"](rows, batch_id)

    def query(self) -> StatefulQuery:
        return stateful_query(self, self.operator, sinks=self.sinks)


def test_sinks_of_a_function_resume_from_their_states_by_name(job: Job) -> None:
    for state, later, batch in ((None, None, 0), (b"1", b"0", 1)):
        job.feed(files=1)
        function = Forwarding(job)
        job.run(function.query())
        around = (("complete", batch),) if batch else ()
        after = (("snapshot", batch + 1), ("complete", batch + 1))
        take = ("take", batch)
        assert function.sinks["all"].calls == [("initialize", state), *around, take, *after]
        calls = (take,) if batch else ()
        assert function.sinks["later"].calls == [("initialize", later), *around, *calls, *after]


def test_query_without_a_sink_of_its_function_is_refused(job: Job) -> None:
    job.feed(files=1)
    job.run(Forwarding(job).query())
    job.feed(files=1)
    operator = job.part(Groups(10), "operator")
    job.check_refused(job.chain(operator), r"states of sinks under \['sink/all', 'sink/later'\]")
    job.settings[ALLOW] = "true"
    job.run(job.chain(operator))
    assert job.checkpoint_ids() == [2]


def test_invalid_sinks_of_a_function_are_refused(job: Job) -> None:
    operator = job.part(Groups(10), "operator")
    sink = RecordingSink()

    def check(message: str, process: Sink = job.write, **sinks: object) -> None:
        with pytest.raises(InvalidRequestError, match=message):
            stateful_query(process, operator, sinks=sinks)  # type: ignore[arg-type]

    check("sink 'plain' is a method, which has no state", plain=job.write)
    check("sinks 'one' and 'two' are one object", one=sink, two=sink)
    check("sink 'itself' is the query's function", process=sink, itself=sink)
    with pytest.raises(InvalidRequestError, match="must be a non-empty string, got ''"):
        stateful_query(job.write, operator, sinks={"": sink})
