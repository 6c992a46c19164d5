"""Jobs that Spark runs in pods, by the entrypoint of the image. The pods are processes of this machine."""

import subprocess
from pathlib import Path

import pyspark
import pytest
from contracts.patience import RUN_HANGS_S
from jobs import submitted
from jobs.cluster import EXECUTOR_OPTIONS
from jobs.job import Job
from jobs.submissions import FILES, check_numbers, feed
from servers.kubernetes import Kubernetes, kubernetes
from servers.spark import clean_environment

from infra.common import free_ports

pytestmark = pytest.mark.exhaustive  # each starts drivers and their executors

STORE = "checkpoint-store"


def submit(job: Job, cluster: Kubernetes) -> None:
    """Submit the job in cluster mode, as the page about Kubernetes does."""
    spark = Path(pyspark.__file__).parent
    port, block_port = free_ports(2)  # else all drivers have the same
    settings = {
        "spark.driver.port": str(port),
        "spark.driver.blockManager.port": str(block_port),
        "spark.driver.extraJavaOptions": EXECUTOR_OPTIONS,
        "spark.driver.memory": "512m",
        "spark.executor.extraJavaOptions": EXECUTOR_OPTIONS,
        "spark.executor.instances": "2",
        "spark.executor.memory": "512m",
        "spark.holdfast.checkpoint.dir": f"file://{job.checkpoints}",
        "spark.kubernetes.authenticate.driver.serviceAccountName": "spark-driver",
        "spark.kubernetes.authenticate.executor.serviceAccountName": "spark-executor",
        "spark.kubernetes.container.image": "registry.example.com/orders:1",
        "spark.kubernetes.driver.master": cluster.master.removeprefix("k8s://"),
        "spark.kubernetes.driver.secretKeyRef.AWS_ACCESS_KEY_ID": f"{STORE}:AWS_ACCESS_KEY_ID",
        "spark.kubernetes.executor.secretKeyRef.AWS_ACCESS_KEY_ID": f"{STORE}:AWS_ACCESS_KEY_ID",
        # The server here has no watches.
        "spark.kubernetes.executor.enableApiWatcher": "false",
        "spark.kubernetes.executor.apiPollingInterval": "500ms",
        "spark.kubernetes.submission.waitAppCompletion": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    ran = subprocess.run(
        [
            spark / "bin" / "spark-submit",
            *("--master", cluster.master, "--deploy-mode", "cluster", "--name", "orders"),
            *(word for key, value in settings.items() for word in ("--conf", f"{key}={value}")),
            f"local://{submitted.__file__}",
            str(job.directory),
        ],
        env=clean_environment(),
        check=False,
        capture_output=True,
        text=True,
        timeout=RUN_HANGS_S,
    )
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-5000:]


def test_lost_pods_are_replaced_and_lose_nothing(job: Job, tmp_path: Path) -> None:
    feed(job)
    pods = tmp_path / "pods"
    pods.mkdir()
    orders = [job.directory / name for name in ("kill-executor", "kill-driver")]
    for order in orders:
        order.touch()
    with kubernetes(pods, {STORE: {"AWS_ACCESS_KEY_ID": "a key"}}) as cluster:
        submit(job, cluster)
        first = cluster.wait_for_end("driver", number=0, timeout_s=RUN_HANGS_S)
        assert first == "Failed", cluster.logs()
        assert job.checkpoint_ids() == [FILES - 1], cluster.logs()
        submit(job, cluster)  # as the operator does
        second = cluster.wait_for_end("driver", number=1, timeout_s=RUN_HANGS_S)
        assert second == "Succeeded", cluster.logs()
        roles = [pod["metadata"]["labels"]["spark-role"] for pod in cluster.pods]
        accounts = {
            pod["metadata"]["labels"]["spark-role"]: pod["spec"]["serviceAccountName"]
            for pod in cluster.pods
        }
    assert not any(order.exists() for order in orders)
    assert roles.count("driver") == 2
    assert roles.count("executor") >= 5  # two of each driver, and one for the killed one
    assert accounts == {"driver": "spark-driver", "executor": "spark-executor"}
    check_numbers(job)
