"""A job whose executors are disturbed, and the result that it must have anyway."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from contracts.patience import wait_until
from jobs.job import Job
from jobs.killed import BATCH, FILES, GROUP, ROWS
from jobs.operators import Groups
from jobs.processes import Signals
from pyspark.sql import SparkSession

from holdfast.locations import FileSystemCheckpointStorage, sweep
from holdfast.locations.adapters import FileStateHandle
from holdfast.locations.coordination import load_checkpoints

EXECUTOR_OPTIONS = os.environ.get("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")
"""JVM options that halve the time in which drivers and executors of tests start."""

SETTINGS = {
    "spark.executor.extraJavaOptions": EXECUTOR_OPTIONS,
    "spark.locality.wait": "0s",
    "spark.python.daemon.module": "holdfast.worker_daemon",
    "spark.scheduler.minRegisteredResourcesRatio": "1",
    # Lost executors don't come back with their files.
    "spark.shuffle.io.retryWait": "100ms",
    # Spark would kill the Python process of an aborted task two seconds later.
    "spark.python.task.killTimeout": "120s",
}


@dataclass(frozen=True, slots=True)
class Reference:
    """The state and output of a job that is not disturbed."""

    held: dict[int, list[int]]
    written: list[int]


@pytest.fixture(scope="session")
def reference(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    job = Job(spark, tmp_path_factory.mktemp("undisturbed"))
    job.feed(files=FILES, rows=ROWS)
    job.run(job.operator(Groups(GROUP)))
    return Reference(job.ids_by_subtask(), job.ids_written())


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


def check_result(job: Job, reference: Reference) -> None:
    """Check that every row is once in the output or in the state, and the state is that of the reference."""
    assert job.checkpoint_ids() == list(range(1, FILES + 1))
    assert job.ids_written() == reference.written
    assert job.ids_by_subtask() == reference.held


def check_late_files_are_swept(job: Job, signals: Signals) -> None:
    """Resume the waiting attempt: a sweep deletes the file that it writes, which no checkpoint has."""
    before = state_files(job)
    signals.give("go")
    wait_until(lambda: state_files(job) > before, "no new file")
    [late] = state_files(job) - before
    assert late.parent.name == f"chk-{BATCH + 1}"
    assert late.name not in names_in_checkpoints(job)
    # Spark may have run other attempts twice, too.
    orphans = {file for file in state_files(job) if file.name not in names_in_checkpoints(job)}
    assert late in orphans
    swept = sweep(f"file://{job.checkpoints}", job.job_directory.name, grace_s=0)
    assert {file.uri for file in swept.files} == {f"file://{orphan}" for orphan in orphans}


def state_files(job: Job) -> set[Path]:
    """Return the files in the directories of checkpoints, except `_metadata`."""
    files = job.job_directory.glob("chk-*/*")
    return {file for file in files if file.name != "_metadata"}


def names_in_checkpoints(job: Job) -> set[str]:
    """Return the names of the files that any checkpoint refers to."""
    storage = FileSystemCheckpointStorage(f"file://{job.checkpoints}")
    loaded = load_checkpoints(storage.create_checkpoint_storage(job.job_directory.name))
    streams = [stream for checkpoint in loaded for stream in checkpoint.metadata.streams()]
    return {
        os.path.basename(stream.uri) for stream in streams if isinstance(stream, FileStateHandle)
    }
