"""Jobs on YARN, in both modes, whose containers die."""

import subprocess
from pathlib import Path
from typing import Any

import pyspark
import pytest
from contracts.patience import RUN_HANGS_S
from jobs import submitted
from jobs.cluster import EXECUTOR_OPTIONS
from jobs.job import Job
from jobs.submissions import check_numbers, feed
from servers.spark import (
    clean_environment,
    pack_environment,
    package,
    python_with_holdfast,
)
from servers.yarn import YarnCluster

pytestmark = pytest.mark.exhaustive  # each starts a driver, its executors and their Python twice


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The Python of an environment with Holdfast and its dependencies."""
    package_zip = tmp_path / "holdfast.zip"
    package(package_zip)
    return python_with_holdfast(tmp_path, package_zip)


def submit(job: Job, yarn: YarnCluster, *options: str) -> list[dict[str, Any]]:
    """Submit the job, and check its state; returns the rows that it has written."""
    feed(job)
    spark = Path(pyspark.__file__).parent
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": EXECUTOR_OPTIONS,
        "spark.driver.memory": "512m",
        "spark.executor.extraJavaOptions": EXECUTOR_OPTIONS,
        "spark.executor.instances": "2",
        "spark.executor.memory": "512m",
        "spark.holdfast.checkpoint.dir": f"file://{job.checkpoints}",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.yarn.am.extraJavaOptions": EXECUTOR_OPTIONS,
        "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",  # the driver's in cluster mode
        "spark.yarn.jars": f"local:{spark}/jars/*",
        "spark.yarn.maxAppAttempts": "2",
        "spark.yarn.stagingDir": f"file://{yarn.directory}/staging",
    }
    ran = subprocess.run(
        [
            spark / "bin" / "spark-submit",
            *("--master", "yarn"),
            *(word for key, value in settings.items() for word in ("--conf", f"{key}={value}")),
            *options,
            submitted.__file__,
            str(job.directory),
        ],
        env={**clean_environment(), "HADOOP_CONF_DIR": str(yarn.conf_dir)},
        check=False,
        capture_output=True,
        text=True,
        timeout=2 * RUN_HANGS_S,
    )
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-5000:] + yarn.logs()
    return check_numbers(job)


def test_client_mode_replaces_a_killed_executor(job: Job, yarn: YarnCluster, python: Path) -> None:
    order = job.directory / "kill-executor"
    order.touch()
    rows = submit(job, yarn, "--conf", f"spark.pyspark.python={python}")
    assert not order.exists()
    assert {row["python"] for row in rows} == {str(python)}


def test_cluster_mode_restarts_a_killed_driver(
    job: Job, yarn: YarnCluster, python: Path, tmp_path: Path
) -> None:
    order = job.directory / "kill-driver"
    order.touch()
    archive = tmp_path / "environment.tar.gz"
    pack_environment(python, archive)
    rows = submit(
        job,
        yarn,
        *("--deploy-mode", "cluster"),
        *("--archives", f"{archive}#environment"),
        *("--conf", "spark.pyspark.python=./environment/bin/python"),
    )
    assert not order.exists()
    for path in {row["python"] for row in rows} | {row["found"] for row in rows}:
        assert path.startswith(f"{yarn.directory}/local/")
