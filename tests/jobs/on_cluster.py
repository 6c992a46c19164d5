"""A job whose executors are disturbed, and what it has to come to all the same."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from contracts.patience import wait_until
from jobs.job import Job
from jobs.killed import BATCH, FILES, GROUP, ROWS
from jobs.operators import Groups
from jobs.signals import Signals
from pyspark.sql import SparkSession

from holdfast.locations import FileSystemCheckpointStorage, sweep
from holdfast.locations.adapters import FileStateHandle
from holdfast.locations.coordination import load_checkpoints

EXECUTOR_OPTIONS = os.environ.get("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")
"""For executors, too, what lets drivers of tests start in half the time."""

SETTINGS = {
    "spark.executor.extraJavaOptions": EXECUTOR_OPTIONS,
    "spark.locality.wait": "0s",
    "spark.python.daemon.module": "holdfast.worker_daemon",
    "spark.scheduler.minRegisteredResourcesRatio": "1",
    # Executors that are gone do not come back with what they had.
    "spark.shuffle.io.retryWait": "100ms",
    # Spark would kill the Python of a task that was given up two seconds later.
    "spark.python.task.killTimeout": "120s",
}


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """What a job comes to if nothing happens to it."""

    held: dict[int, list[int]]
    written: list[int]


@pytest.fixture(scope="session")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    job = Job(spark, tmp_path_factory.mktemp("undisturbed"))
    job.feed(files=FILES, rows=ROWS)
    job.run(job.operator(Groups(GROUP)))
    return Undisturbed(job.ids_by_subtask(), job.ids_written())


@pytest.fixture
def signals(tmp_path: Path) -> Signals:
    return Signals(tmp_path / "signals")


@pytest.fixture
def fed_job(job: Job) -> Job:
    job.settings |= {
        "spark.holdfast.checkpoint.num-retained": str(FILES),
        "spark.holdfast.state.inline-threshold": "0",  # all state is in files
    }
    job.feed(files=FILES, rows=ROWS)
    return job


def check(job: Job, undisturbed: Undisturbed) -> None:
    """Every row is once in the output or in the state, and the state is as if nothing had happened."""
    assert job.completed() == list(range(1, FILES + 1))
    assert job.ids_written() == undisturbed.written
    assert job.ids_by_subtask() == undisturbed.held


def check_what_comes_late_is_swept(job: Job, signals: Signals) -> None:
    """Let the attempt that waits go on: what it writes is in no checkpoint, and is deleted."""
    before = state_files(job)
    signals.give("go")
    wait_until(lambda: state_files(job) > before, "no file comes")
    [late] = state_files(job) - before
    assert late.parent.name == f"chk-{BATCH + 1}"
    assert late.name not in names_in_checkpoints(job)
    # Spark may have run other attempts twice, too.
    orphans = {file for file in state_files(job) if file.name not in names_in_checkpoints(job)}
    assert late in orphans
    swept = sweep(f"file://{job.checkpoints}", job.job_directory.name, grace_s=0)
    assert {file.uri for file in swept.files} == {f"file://{orphan}" for orphan in orphans}


def state_files(job: Job) -> set[Path]:
    """What is in the directories of checkpoints, besides `_metadata`."""
    files = job.job_directory.glob("chk-*/*")
    return {file for file in files if file.name != "_metadata"}


def names_in_checkpoints(job: Job) -> set[str]:
    """Names of the files that any checkpoint leads to."""
    storage = FileSystemCheckpointStorage(f"file://{job.checkpoints}")
    loaded = load_checkpoints(storage.create_checkpoint_storage(job.job_directory.name))
    streams = [stream for checkpoint in loaded for stream in checkpoint.metadata.streams()]
    return {
        os.path.basename(stream.uri) for stream in streams if isinstance(stream, FileStateHandle)
    }
