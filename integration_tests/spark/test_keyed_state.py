"""Keyed state over a driver that is killed."""

from pathlib import Path

import pytest
from jobs.job import Job
from jobs.killed import BATCH
from jobs.processes import run_until_killed
from jobs.totals_by_key import FUNCTIONS, ROWS, Function, check_totals, run, totals
from pyspark.sql import SparkSession

from holdfast.locations import sweep
from holdfast.locations.adapters import FileStateHandle
from holdfast.spark.query import CLEANER


@pytest.fixture(scope="module")
def killed_jobs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directories of jobs, one for each function, whose driver was killed."""
    directory = tmp_path_factory.mktemp("killed")
    for function in FUNCTIONS:
        Job(spark, directory / function).feed(files=3, rows=ROWS)
    run_until_killed("-m", "jobs.totals_by_key", str(directory), "rocksdb")
    return directory


# The demo kills its second job, which is by key and keeps its state in columns, at other points.
@pytest.mark.parametrize("state_backend", ["rocksdb"], indirect=True)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.usefixtures("state_backend")
def test_killed_driver_loses_and_duplicates_nothing(
    spark: SparkSession, killed_jobs: Path, function: Function
) -> None:
    job = Job(spark, killed_jobs / function)
    assert max(job.checkpoint_ids()) == BATCH
    run(job, totals(job, function=function, parallelism=3))
    check_totals(job, function)
    CLEANER.wait()
    sweep(f"file://{job.checkpoints}", job.job_directory.name, grace_s=0)
    streams = job.latest().metadata.shared_streams()
    files = {stream.uri for stream in streams if isinstance(stream, FileStateHandle)}
    assert {f"file://{file}" for file in job.job_directory.glob("shared/*")} == files != set()
