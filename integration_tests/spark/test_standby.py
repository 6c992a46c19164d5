"""Two drivers of a job in separate processes: the active one is killed, stopped or ended, and the standby takes over."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from contracts.patience import wait_until
from jobs.job import Job
from jobs.processes import Signals
from jobs.standby import StandbyProcess, standby_process
from pyspark.sql import SparkSession

from holdfast.locations.coordination.standby import HEARTBEATS

WAITS = "this one waits as a standby"
TAKES_OVER = "has sent no heartbeat for"


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """The job, for its files: the drivers have their own sessions."""
    spark: SparkSession = None  # type: ignore[assignment]
    return Job(spark, tmp_path / "job")


@contextmanager
def two_drivers(
    job: Job, *, is_warm: bool = False, trigger: str = "continuous"
) -> Iterator[tuple[StandbyProcess, StandbyProcess]]:
    """Run an active driver that has completed three batches, and a standby on the same or another host."""
    job.feed(files=3)
    locals_ = [job.directory.with_name(name) for name in ("host", "host" if is_warm else "other")]
    with ExitStack() as block:
        active = block.enter_context(standby_process(job.directory, locals_[0], trigger=trigger))
        wait_until(lambda: 3 in checkpoint_ids(job), active.log)
        standby = block.enter_context(standby_process(job.directory, locals_[1], trigger=trigger))
        standby.wait_for(WAITS)
        yield active, standby


def checkpoint_ids(job: Job) -> list[int]:
    return job.checkpoint_ids() if job.checkpoints.exists() else []


def feed_and_wait(job: Job, driver: StandbyProcess, files: int, newest: int) -> None:
    """Put files into the source, and wait for their last checkpoint, which this driver has to commit."""
    job.feed(files=files)
    wait_until(lambda: newest in checkpoint_ids(job), driver.log)


@pytest.mark.parametrize("is_warm", [False, True], ids=["cold host", "warm host"])
def test_standby_continues_the_job_of_a_killed_driver(job: Job, *, is_warm: bool) -> None:
    with two_drivers(job, is_warm=is_warm) as (active, standby):
        active.send(signal.SIGKILL)
        feed_and_wait(job, standby, files=3, newest=6)
        assert TAKES_OVER in standby.log()
        job.check_every_row_is_there_once()


def test_stopped_idle_driver_ends_when_it_comes_back(job: Job) -> None:
    with two_drivers(job) as (active, standby):
        active.send(signal.SIGSTOP)
        feed_and_wait(job, standby, files=1, newest=4)
        active.send(signal.SIGCONT)
        assert active.end() == 1
        assert "[HF-TAKEN-OVER]" in active.log()
        feed_and_wait(job, standby, files=2, newest=6)
        assert standby.process.is_running()
        job.check_every_row_is_there_once()


def test_driver_stopped_in_a_batch_commits_nothing_when_it_comes_back(job: Job) -> None:
    signals = Signals(job.directory / "signals")
    signals.give("block 3")
    with two_drivers(job) as (active, standby):
        job.feed(files=1)
        signals.wait("blocks")
        active.send(signal.SIGSTOP)
        feed_and_wait(job, standby, files=1, newest=5)
        signals.give("go")
        active.send(signal.SIGCONT)
        assert active.end() == 1
        assert "[HF-TAKEN-OVER]" in active.log()
        feed_and_wait(job, standby, files=1, newest=6)
        job.check_every_row_is_there_once()


def test_driver_with_a_long_batch_keeps_the_job(job: Job) -> None:
    signals = Signals(job.directory / "signals")
    signals.give("block 3")
    with two_drivers(job) as (active, standby):
        job.feed(files=1)
        signals.wait("blocks")
        shown = newest_heartbeat(job)
        wait_until(lambda: newest_heartbeat(job) > shown + 2 * HEARTBEATS, active.log)
        signals.give("go")
        wait_until(lambda: 4 in checkpoint_ids(job), active.log)
        assert TAKES_OVER not in standby.log()


def newest_heartbeat(job: Job) -> int:
    """Return the number of the newest heartbeat in the first term; 0 if none is there."""
    files = job.checkpoints.glob("*/_epoch/_driver-1-*")
    return max((int(file.name.rpartition("-")[2]) for file in files), default=0)


def test_interrupted_standby_ends_and_interrupted_driver_hands_over(job: Job) -> None:
    with two_drivers(job) as (active, standby):
        standby.process.send_signal(signal.SIGINT)
        assert standby.end() != 0
        assert "KeyboardInterrupt" in standby.log()
        with standby_process(job.directory, job.directory.with_name("third")) as third:
            third.wait_for(WAITS)
            active.process.send_signal(signal.SIGINT)
            feed_and_wait(job, third, files=1, newest=4)
            assert TAKES_OVER not in third.log()
            job.check_every_row_is_there_once()


def test_standby_ends_with_the_job(job: Job) -> None:
    signals = Signals(job.directory / "signals")
    signals.give("block 2")
    job.feed(files=3)
    with standby_process(job.directory, job.directory.with_name("host"), trigger="now") as active:
        signals.wait("blocks")
        with standby_process(job.directory, job.directory.with_name("other")) as standby:
            standby.wait_for(WAITS)
            signals.give("go")
            assert active.end() == 0
            assert standby.end() == 0
            assert checkpoint_ids(job) == [2, 3]
            job.check_every_row_is_there_once()
