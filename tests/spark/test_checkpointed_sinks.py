"""Sinks with a state of their own."""

from pathlib import Path
from unittest import mock

import pytest
from jobs.job import Job
from jobs.operators import Groups
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from holdfast import CheckpointedSink, stateful_query
from holdfast.errors import StorageUnavailableError

ALLOW = "spark.holdfast.checkpoint.allow-non-restored-state"


class Notes:
    """Writes down how it is called, and how often it has taken a batch."""

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


class AppliesAndNotes(Notes):
    """The same as the function of a query."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.operator = job.operator(Groups(10), sink=None)

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        super().__call__(self.operator.apply(rows), batch_id)


@pytest.mark.parametrize(
    "of", ["an operator", pytest.param("a query", marks=pytest.mark.exhaustive)]
)
def test_a_sink_goes_on_with_what_the_last_checkpoint_holds(job: Job, of: str) -> None:
    for state, batch in ((None, 0), (b"1", 1)):
        job.feed(files=1)
        sink = AppliesAndNotes(job) if of == "a query" else Notes()
        assert isinstance(sink, CheckpointedSink)
        if isinstance(sink, AppliesAndNotes):
            job.run(stateful_query(sink, sink.operator))
        else:
            job.run(job.operator(Groups(10), sink=sink))
        assert sink.calls == [
            ("initialize", state),
            *([("complete", batch)] if batch else []),
            ("take", batch),
            ("snapshot", batch + 1),
            ("complete", batch + 1),
        ]
    job.repeat_last_batch()
    again = AppliesAndNotes(job) if of == "a query" else Notes()
    if isinstance(again, AppliesAndNotes):
        job.run(stateful_query(again, again.operator))
    else:
        job.run(job.operator(Groups(10), sink=again))
    assert again.calls == [("initialize", b"2"), ("complete", 2)]


def test_what_was_noted_for_a_checkpoint_that_failed_is_forgotten(job: Job) -> None:
    job.feed(files=1)
    sink = Notes()
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


def test_a_query_without_the_sink_is_refused_unless_its_state_may_be_left(job: Job) -> None:
    job.feed(files=1)
    job.run(job.operator(Groups(10), sink=Notes()))
    job.feed(files=1)
    with pytest.raises(StreamingQueryException, match=r"states of sinks under \['sink/operator'\]"):
        job.run(job.operator(Groups(10)))
    assert job.checkpoint_ids() == [1]
    job.settings[ALLOW] = "true"
    job.run(job.operator(Groups(10)))
    assert job.checkpoint_ids() == [2]


@pytest.mark.exhaustive
def test_a_state_that_is_no_bytes_is_refused(job: Job) -> None:
    class Wrong(Notes):
        def snapshot_state(self, checkpoint_id: int) -> bytes:
            return checkpoint_id  # type: ignore[return-value]

    job.feed(files=1)
    with pytest.raises(
        StreamingQueryException, match="snapshot_state of Wrong must return bytes, got int"
    ):
        job.run(job.operator(Groups(10), sink=Wrong()))
    assert job.checkpoint_ids() == []


@pytest.mark.exhaustive
def test_a_sink_with_a_state_serves_one_query(job: Job, tmp_path: Path) -> None:
    other = Job(job.spark, tmp_path / "other")
    operator = job.operator(Groups(10), sink=Notes())
    for query_job in (job, other):
        query_job.feed(files=1)
    job.run(operator)
    with pytest.raises(StreamingQueryException, match="serves one query"):
        other.run(operator)
    assert other.checkpoint_ids() == []
