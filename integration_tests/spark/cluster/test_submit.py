"""The ways to ship the package to executors whose Python does not have it."""

import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark
import pytest
from contracts.patience import RUN_HANGS_S
from jobs import submitted
from jobs.cluster import EXECUTOR_OPTIONS
from jobs.job import Job
from servers.spark import (
    SparkCluster,
    clean_environment,
    pack_environment,
    package,
    python_with_holdfast,
    python_without_holdfast,
)

FILES = 2
ROWS = 10


@pytest.fixture(scope="module")
def package_zip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("package") / "holdfast.zip"
    package(file)
    return file


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without Holdfast, like that of all machines."""
    return python_without_holdfast(tmp_path_factory.mktemp("python"))


@pytest.fixture
def environment(tmp_path: Path, package_zip: Path) -> Path:
    """The Python of an environment with Holdfast and its dependencies."""
    return python_with_holdfast(tmp_path / "of the driver", package_zip)


def submit(job: Job, cluster: SparkCluster, driver: Path, *options: str) -> list[dict[str, Any]]:
    """Submit the job to the cluster with a clean environment; returns the rows that it has written."""
    job.feed(files=FILES, rows=ROWS)
    spark = Path(pyspark.__file__).parent
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.extraJavaOptions": EXECUTOR_OPTIONS,
        "spark.holdfast.checkpoint.dir": f"file://{job.checkpoints}",
        "spark.pyspark.driver.python": str(driver),
        "spark.scheduler.minRegisteredResourcesRatio": "1",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    ran = subprocess.run(
        [
            spark / "bin" / "spark-submit",
            *("--master", cluster.master),
            *(word for key, value in settings.items() for word in ("--conf", f"{key}={value}")),
            *options,
            submitted.__file__,
            str(job.directory),
        ],
        env=clean_environment(),
        check=False,
        capture_output=True,
        text=True,
        timeout=RUN_HANGS_S,
    )
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-5000:]  # Python errors are in stdout
    assert job.checkpoint_ids() == [FILES]
    files = job.output.glob("batch=*/*.parquet")
    rows: list[dict[str, Any]] = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert sorted(row["id"] for row in rows) == list(range(FILES * ROWS))
    return rows


def test_executors_have_the_package_from_py_files(
    cluster: SparkCluster, job: Job, package_zip: Path, python: Path
) -> None:
    imported = subprocess.run(
        [python, "-c", "import holdfast"],
        env=clean_environment(),
        check=False,
        capture_output=True,
    )
    assert b"No module named 'holdfast'" in imported.stderr
    options = ("--py-files", str(package_zip), "--conf", f"spark.pyspark.python={python}")
    rows = submit(job, cluster, python, *options)
    assert {row["python"] for row in rows} == {str(python)}
    check_is_from_the_cluster(cluster, {row["found"] for row in rows}, "holdfast.zip")


def test_executors_have_python_and_package_from_an_archive(
    cluster: SparkCluster, job: Job, environment: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "environment.tar.gz"
    pack_environment(environment, archive)
    python = "spark.pyspark.python=./environment/bin/python"
    options = ("--archives", f"{archive}#environment", "--conf", python)
    rows = submit(job, cluster, environment, *options)
    check_is_from_the_cluster(cluster, {row["python"] for row in rows}, "environment/bin/python")
    check_is_from_the_cluster(cluster, {row["found"] for row in rows}, "environment/lib")


def check_is_from_the_cluster(cluster: SparkCluster, paths: set[str], part: str) -> None:
    """Check that all are copies in the directories of executors."""
    assert paths
    for path in paths:
        assert path.startswith(f"{cluster.directory}/")
        assert part in path
