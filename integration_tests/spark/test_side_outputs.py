"""Deduplication and side outputs over a driver that is killed."""

from pathlib import Path

import pytest
from jobs.job import Job
from jobs.killed import BATCH
from jobs.processes import run_until_killed
from jobs.side_outputs import KEYS, ROWS, ids_of, run
from pyspark.sql import SparkSession

from holdfast.backends.keyed import BackendName

BACKENDS = ["columnar", "rocksdb"]


@pytest.fixture(scope="module")
def killed_jobs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directories of jobs, one for each backend, whose driver was killed."""
    directory = tmp_path_factory.mktemp("killed")
    for backend in BACKENDS:
        Job(spark, directory / backend).feed(files=3, rows=ROWS)
    run_until_killed("-m", "jobs.side_outputs", str(directory))
    return directory


@pytest.mark.parametrize("state_backend", BACKENDS, indirect=True)
def test_killed_driver_passes_each_key_to_one_output_once(
    spark: SparkSession, killed_jobs: Path, state_backend: BackendName
) -> None:
    job = Job(spark, killed_jobs / state_backend)
    assert max(job.checkpoint_ids()) == BATCH
    run(job, parallelism=3)
    assert ids_of(job, "even") == list(range(0, KEYS, 2))
    assert ids_of(job, "odd") == list(range(1, KEYS, 2))
