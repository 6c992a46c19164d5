"""Jobs whose checkpoints are in Google Cloud Storage or Azure: killed, resumed with another parallelism, verified."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from jobs.job import Job
from jobs.killed import BATCH, GROUP
from jobs.operators import Groups
from jobs.processes import run_until_killed
from pyspark.sql import DataFrame
from servers.clouds import AzureServer, CloudBucket, azurite, cloud_bucket, memory_gcs

from holdfast import read_state
from holdfast.cli.command_line import main
from holdfast.locations import AzureSettings, sweep
from holdfast.locations.adapters import unregister_file_system
from holdfast.spark.query import CLEANER

__all__ = ["azurite", "cloud_bucket", "memory_gcs"]

FILES = 4
ROWS = 100

DRIVER = """
import sys
from pathlib import Path
from unittest import mock

from jobs import job, killed


class JobOfDefaults(job.Job):
    def __init__(self, spark, directory):
        super().__init__(spark, directory)
        self.settings = {}  # they are in spark-defaults.conf


with mock.patch.object(killed, "Job", JobOfDefaults):
    killed.main(Path(sys.argv[1]))
"""
"""The driver of `jobs.killed` with settings from a file."""


@dataclass
class JobInCloud:
    """A streaming query whose checkpoints are in a bucket."""

    job: Job
    bucket: CloudBucket

    def __post_init__(self) -> None:
        self.job.settings = {
            **store_settings(self.bucket),
            "spark.holdfast.checkpoint.dir": self.checkpoints,
            "spark.holdfast.checkpoint.num-retained": "2",
            "spark.holdfast.job.id": "job",
            "spark.holdfast.state.inline-threshold": "0",  # all state is in objects
        }

    @property
    def checkpoints(self) -> str:
        return f"{self.bucket.uri}/checkpoints"

    def run_until_killed(self) -> str:
        """Run it in a driver that dies before the metadata of its second batch; returns its output."""
        defaults = self.job.directory / "conf" / "spark-defaults.conf"
        defaults.parent.mkdir()
        defaults.write_text("".join(f"{k} {v}\n" for k, v in self.job.settings.items()))
        environment = {"SPARK_CONF_DIR": str(defaults.parent)}
        return run_until_killed("-c", DRIVER, str(self.job.directory), environment=environment)


def store_settings(bucket: CloudBucket) -> dict[str, str]:
    settings = bucket.server.settings
    if isinstance(settings, AzureSettings):
        return {
            "spark.holdfast.azure.endpoint": settings.endpoint or "",
            "spark.holdfast.azure.account": settings.account or "",
            "spark.holdfast.azure.secret-key": settings.secret_key or "",
        }
    return {
        "spark.hadoop.fs.gs.storage.root.url": settings.endpoint or "",
        "spark.hadoop.fs.gs.auth.type": "UNAUTHENTICATED",
    }


@pytest.fixture
def job_in_cloud(job: Job, cloud_bucket: CloudBucket) -> Iterator[JobInCloud]:
    yield JobInCloud(job, cloud_bucket)
    unregister_file_system(cloud_bucket.server.scheme)


def test_killed_job_resumes_with_another_parallelism(
    job_in_cloud: JobInCloud, capsys: pytest.CaptureFixture[str]
) -> None:
    job, bucket = job_in_cloud.job, job_in_cloud.bucket
    job.feed(files=FILES, rows=ROWS)
    output = job_in_cloud.run_until_killed()
    kept = bucket.contents("checkpoints/job/")
    assert [name for name in kept if name.endswith("/_metadata")] == [f"chk-{BATCH}/_metadata"]

    sunk: list[int] = []

    def sink(rows: DataFrame, batch_id: int) -> None:
        sunk.append(batch_id)
        job.write(rows, batch_id)

    job.run(job.operator(Groups(GROUP), sink=sink, parallelism=3))
    assert sunk == list(range(BATCH, FILES))
    CLEANER.wait()

    pointer = f"{job_in_cloud.checkpoints}/job/chk-{FILES}"
    held = [row["id"] for row in read_state(pointer, "operator", "rows")["value"].to_pylist()]
    assert sorted([*job.ids_written(), *held]) == job.ids_fed

    assert main(["list", job_in_cloud.checkpoints, "--json"]) == 0
    assert [row["checkpoint"] for row in json.loads(capsys.readouterr().out)] == [FILES - 1, FILES]
    assert main(["verify", "--all", job_in_cloud.checkpoints]) == 0

    sweep(job_in_cloud.checkpoints, "job", grace_s=0)  # the job itself keeps young orphans
    kept = bucket.contents("checkpoints/job/")
    directories = {name.rpartition("/")[0] for name in kept}
    assert directories == {"_epoch", f"chk-{FILES - 1}", f"chk-{FILES}"}
    if isinstance(bucket.server, AzureServer):
        secret = store_settings(bucket)["spark.holdfast.azure.secret-key"]
        assert secret not in output
        assert not [name for name, data in kept.items() if secret.encode() in data]
