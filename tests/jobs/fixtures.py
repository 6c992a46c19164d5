"""One real Spark for all tests of a run, jobs, and the backends of keyed state."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs.job import Job, local_spark
from jobs.keyed import DEFAULT_STATE
from jobs.quick_disk import QUICK_DISK
from jobs.session import STATE_BACKEND, session_with
from pyspark.sql import SparkSession

from holdfast.backends.keyed import BackendName
from holdfast.spark.settings import StateSettings


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = local_spark()
    yield session
    session.stop()


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    return Job(spark, tmp_path / "job")


BACKENDS = ["columnar", pytest.param("rocksdb", marks=pytest.mark.exhaustive)]


@pytest.fixture(params=BACKENDS if STATE_BACKEND == "columnar" else [STATE_BACKEND])
def state_backend(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[BackendName]:
    """Run the test once for each backend of keyed state; `make test` needs only the first."""
    backend: BackendName = request.param
    token = DEFAULT_STATE.set(StateSettings(backend=backend))
    if {"spark", "job"} & set(request.fixturenames):
        setting = {"spark.holdfast.state.backend": backend}
        with session_with(request.getfixturevalue("spark"), setting):
            yield backend
    else:  # RocksDB is here, for lack of an executor's directory
        # Never with Spark: its process that polls for idle ticks would still look in the usual directory.
        monkeypatch.setattr(tempfile, "tempdir", QUICK_DISK)
        yield backend
    DEFAULT_STATE.reset(token)
