"""Requests of idle ticks by files, without Spark, and the change to a later PySpark."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from contracts.patience import wait_until
from jobs.job import Job
from jobs.operators import Groups

from holdfast.common import SYSTEM_CLOCK
from holdfast.errors import StorageUnavailableError
from holdfast.spark import event_time, file_ticks
from holdfast.spark.compat import IS_PYSPARK_4
from holdfast.spark.event_time import IdleTicks


@pytest.fixture
def idle_ticks(monkeypatch: pytest.MonkeyPatch) -> Iterator[IdleTicks]:
    monkeypatch.setattr(event_time, "USES_FILES", True)
    idle_ticks = IdleTicks()
    directory(idle_ticks).mkdir()
    yield idle_ticks
    if directory(idle_ticks).exists():
        idle_ticks.ask(None)


def directory(idle_ticks: IdleTicks) -> Path:
    return file_ticks.request_file(idle_ticks.name)


def files(idle_ticks: IdleTicks) -> list[Path]:
    return list(directory(idle_ticks).iterdir())


def test_request_at_once_replaces_the_file_of_an_earlier_one(idle_ticks: IdleTicks) -> None:
    idle_ticks.ask(0)
    (first,) = files(idle_ticks)
    assert first.read_bytes() == b""
    idle_ticks.ask(0)
    (second,) = files(idle_ticks)
    assert second != first
    idle_ticks.ask(None)
    assert files(idle_ticks) == []


def test_request_for_later_becomes_a_file_when_it_is_due(idle_ticks: IdleTicks) -> None:
    due_ms = SYSTEM_CLOCK.now_ms() + 100
    idle_ticks.ask(due_ms)
    assert files(idle_ticks) == []
    wait_until(lambda: files(idle_ticks), "the request did not become a file")
    assert SYSTEM_CLOCK.now_ms() >= due_ms


def test_only_the_last_request_becomes_a_file(idle_ticks: IdleTicks) -> None:
    other = IdleTicks()
    directory(other).mkdir()
    idle_ticks.ask(SYSTEM_CLOCK.now_ms() + 50)
    idle_ticks.ask(2**62)  # far beyond what a thread can wait
    other.ask(SYSTEM_CLOCK.now_ms() + 100)
    wait_until(lambda: files(other), "the request did not become a file")
    assert files(idle_ticks) == []


def test_failed_write_of_a_request_is_an_error(idle_ticks: IdleTicks) -> None:
    directory(idle_ticks).rmdir()
    with pytest.raises(StorageUnavailableError, match="can't ask Spark for a batch"):
        idle_ticks.ask(0)


def run(job: Job) -> None:
    idle_ticks = IdleTicks()
    operator = job.operator(Groups(1), idle_ticks=idle_ticks)
    job.start(operator, rows=idle_ticks.add_to(job.stream()), availableNow=True).awaitTermination()


@pytest.mark.skipif(not IS_PYSPARK_4, reason="not for PySpark 3.5")
def test_query_of_pyspark_3_5_continues_with_a_later_version(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(event_time, "USES_FILES", True)
        job.feed(files=2, rows=2)
        run(job)
        run(job)  # lists the files of another directory than the run before
    assert job.checkpoint_ids() == [3]
    job.feed(files=1, rows=2)
    run(job)
    run(job)
    assert job.checkpoint_ids() == [5]
    assert job.ids_written() == job.ids_fed
