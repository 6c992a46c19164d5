"""Keyed state over a driver that is killed, on a Spark Connect server, and in a savepoint of a whole query."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from contracts.patience import RUN_HANGS_S
from jobs.connect import ConnectJob
from jobs.job import Job
from jobs.totals_by_key import ROWS, check_totals, run, totals
from pyspark.sql import SparkSession
from servers.connect import ConnectServer

from holdfast.locations import sweep
from holdfast.locations.adapters import FileStateHandle
from holdfast.spark.query import CLEANER

TESTS = Path(__file__).parents[1] / "tests"


@pytest.mark.parametrize("point", ["before the metadata", "after the metadata"])
def test_a_killed_driver_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, point: str
) -> None:
    job = Job(spark, tmp_path / "job")
    job.feed(files=3, rows=ROWS)
    died = subprocess.run(
        [sys.executable, "-m", "jobs.totals_by_key", str(job.directory), point],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=RUN_HANGS_S,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr.decode(errors="replace")[-5000:]
    assert max(job.completed()) == (1 if point == "before the metadata" else 2)
    run(job, totals(job, parallelism=3))
    check_totals(job)
    CLEANER.wait()
    sweep(f"file://{job.checkpoints}", job.job_directory.name, grace_s=0)
    streams = job.latest().metadata.shared_streams()
    files = {stream.uri for stream in streams if isinstance(stream, FileStateHandle)}
    assert {f"file://{file}" for file in job.job_directory.glob("shared/*")} == files != set()


def test_it_is_the_same_on_a_connect_server(connect: ConnectServer, tmp_path: Path) -> None:
    job = ConnectJob(connect, tmp_path / "job")
    try:
        job.feed(files=2, rows=ROWS)
        run(job, totals(job))
        job.feed(files=1, rows=ROWS)
        run(job, totals(job, parallelism=3))
        check_totals(job)
    finally:
        job.spark.stop()
