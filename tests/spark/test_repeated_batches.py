"""Batches that are declined and repeated in the same call of `foreachBatch`."""

import logging
from collections.abc import Callable

import pytest
from jobs.job import Job
from jobs.operators import Groups
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from holdfast.locations.storages import JobDirectory

REPEATED = 2


def read_twice(*, times: int) -> tuple[list[int], Callable[[Job, DataFrame, int], None]]:
    """Return the batches of a sink's calls, and the sink: in these first calls in batch 1 it runs its rows twice."""
    calls: list[int] = []

    def write(job: Job, rows: DataFrame, batch_id: int) -> None:
        calls.append(batch_id)
        if batch_id == 1 and calls.count(1) <= times:
            job.write(rows, batch_id)
        job.write(rows, batch_id)

    return calls, write


def test_declined_batch_is_repeated_from_the_last_checkpoint(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    calls, write = read_twice(times=REPEATED)
    job.feed(files=4)
    with caplog.at_level(logging.WARNING):
        job.run(job.operator(Groups(30), sink=lambda rows, batch_id: write(job, rows, batch_id)))
    assert calls == [0, 1, 1, 1, 2, 3]
    job.check_every_row_is_there_once()
    repeated = [text for text in caplog.messages if "batch 1 is repeated" in text]
    assert len(repeated) == REPEATED
    assert all("HF-DECLINED" in text for text in repeated)


def test_query_fails_if_its_batch_is_always_declined(job: Job) -> None:
    calls, write = read_twice(times=10)
    job.feed(files=3)
    operator = job.operator(Groups(30), sink=lambda rows, batch_id: write(job, rows, batch_id))
    with pytest.raises(StreamingQueryException, match=r"more than once.*\[HF-DECLINED\]"):
        job.run(operator)
    assert calls == [0, 1, 1, 1]
    assert job.checkpoint_ids() == [1]
    _, write = read_twice(times=0)
    job.run(operator)
    job.check_every_row_is_there_once()


def test_replaced_driver_does_not_take_the_job_back_by_a_repetition(job: Job) -> None:
    calls, write_twice = read_twice(times=1)

    def write(rows: DataFrame, batch_id: int) -> None:
        write_twice(job, rows, batch_id)
        if calls == [0, 1]:
            claims.append(
                JobDirectory(job.job_directory.as_uri(), single_writer=False).claim().epoch
            )

    claims: list[int] = []
    job.feed(files=3)
    with pytest.raises(
        StreamingQueryException, match=r"another driver has taken over.*HF-TAKEN-OVER"
    ):
        job.run(job.operator(Groups(30), sink=write))
    assert calls == [0, 1, 1]
    assert {file.name for file in (job.job_directory / "_epoch").iterdir()} == {str(claims[0])}


class StatefulSink:
    """Writes rows, keeps the number of its batches, and runs its rows twice in the first call in batch 1."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.events: list[tuple[str, object]] = []
        self.batches = 0
        _, self.write = read_twice(times=1)

    def initialize_state(self, state: bytes | None) -> None:
        self.events.append(("initialize", state))
        self.batches = int(state or b"0")

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        self.batches += 1
        self.write(self.job, rows, batch_id)

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        self.events.append(("snapshot", checkpoint_id))
        return b"%d" % self.batches

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.events.append(("complete", checkpoint_id))

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.events.append(("aborted", checkpoint_id))


def test_sink_with_state_is_restored_before_the_repetition(job: Job) -> None:
    job.feed(files=2)
    sink = StatefulSink(job)
    job.run(job.operator(Groups(30), sink=sink))
    assert sink.events == [
        ("initialize", None),
        ("snapshot", 1),
        ("complete", 1),
        ("aborted", 2),
        ("initialize", b"1"),
        ("complete", 1),  # as after a restart
        ("snapshot", 2),
        ("complete", 2),
    ]
    job.check_every_row_is_there_once()
