"""One real Spark for all tests of a run."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs.job import Job, local_spark
from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = local_spark()
    yield session
    session.stop()


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    return Job(spark, tmp_path / "job")
