"""One real Spark for all tests of a run, and the backends that keyed state is in."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs.job import Job, local_spark
from jobs.keyed import USUAL
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


_IN_TURN = ["columnar", pytest.param("rocksdb", marks=pytest.mark.exhaustive)]


@pytest.fixture(params=_IN_TURN if STATE_BACKEND == "columnar" else [STATE_BACKEND])
def state_backend(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[BackendName]:
    """The backend of keyed state that jobs of the test have, each in turn; all that `make test` is for is seen with the first."""
    backend: BackendName = request.param
    token = USUAL.set(StateSettings(backend=backend))
    if {"spark", "job"} & set(request.fixturenames):
        setting = {"spark.holdfast.state.backend": backend}
        with session_with(request.getfixturevalue("spark"), setting):
            yield backend
    else:  # RocksDB is here, for lack of an executor's directory
        # Never with Spark: its process that polls for idle ticks would still look in the usual directory.
        monkeypatch.setattr(tempfile, "tempdir", QUICK_DISK)
        yield backend
    USUAL.reset(token)
