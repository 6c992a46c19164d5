"""Jobs whose checkpoints are on an object store: killed, and moved from one client to another."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from jobs.job import Job
from jobs.killed import BATCH, GROUP
from jobs.operators import Groups
from jobs.processes import run_until_killed
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from servers.s3 import S3Bucket

from holdfast.locations import sweep
from holdfast.locations.adapters import unregister_file_system
from holdfast.spark.query import CLEANER

FILES = 4
ROWS = 100
RETAINED = 2


DRIVER = """
import logging
import sys
from pathlib import Path
from unittest import mock

from jobs import job, killed


class JobOfDefaults(job.Job):
    def __init__(self, spark, directory):
        super().__init__(spark, directory)
        self.settings = {}  # they are in spark-defaults.conf
        spark.sparkContext.setLogLevel("INFO")


logging.basicConfig(level=logging.DEBUG)
logging.getLogger("py4j").setLevel(logging.INFO)  # it would log what Spark answers: all settings
with mock.patch.object(killed, "Job", JobOfDefaults):
    killed.main(Path(sys.argv[1]))
"""
"""The driver of `jobs.killed` with all its logs."""


def forget_s3() -> None:
    for scheme in ("s3", "s3a", "fsspec+s3", "fsspec+s3a"):
        unregister_file_system(scheme)


@dataclass
class JobOnS3:
    """A streaming query whose checkpoints are in a bucket, which Hadoop settings describe."""

    job: Job
    bucket: S3Bucket

    def __post_init__(self) -> None:
        server = self.bucket.server
        self.job.settings = {
            "spark.hadoop.fs.s3a.endpoint": server.endpoint,
            "spark.hadoop.fs.s3a.access.key": server.access_key,
            "spark.hadoop.fs.s3a.secret.key": server.secret_key,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.holdfast.checkpoint.dir": self.checkpoints,
            "spark.holdfast.checkpoint.num-retained": str(RETAINED),
            "spark.holdfast.job.id": "job",
            "spark.holdfast.state.inline-threshold": "0",  # all state is in objects
        }

    @property
    def checkpoints(self) -> str:
        return f"s3://{self.bucket.name}/checkpoints"

    def checkpoint_ids(self) -> list[int]:
        """Return the ids of completed checkpoints, read without the library."""
        return sorted(
            int(key.split("/")[2].removeprefix("chk-"))
            for key in self.bucket.keys("checkpoints")
            if key.endswith("/_metadata")
        )

    def run_until_killed(self) -> str:
        """Run it in a driver that dies before the metadata of its second batch; returns its output."""
        defaults = self.job.directory / "conf" / "spark-defaults.conf"
        defaults.parent.mkdir()
        defaults.write_text("".join(f"{k} {v}\n" for k, v in self.job.settings.items()))
        return run_until_killed(
            "-c",
            DRIVER,
            str(self.job.directory),
            environment={"SPARK_CONF_DIR": str(defaults.parent)},
        )


@pytest.fixture
def job_on_s3(job: Job, minio_bucket: S3Bucket) -> Iterator[JobOnS3]:
    yield JobOnS3(job, minio_bucket)
    forget_s3()


# test_crash.py has all other points: here the store has everything of an attempt except its metadata.
def test_killed_job_resumes_and_keeps_only_retained_checkpoints(
    job_on_s3: JobOnS3, caplog: pytest.LogCaptureFixture
) -> None:
    job, bucket = job_on_s3.job, job_on_s3.bucket
    job.feed(files=FILES, rows=ROWS)
    output = job_on_s3.run_until_killed()
    assert job_on_s3.checkpoint_ids()[-1] == BATCH

    sunk: list[int] = []

    def sink(rows: DataFrame, batch_id: int) -> None:
        sunk.append(batch_id)
        job.write(rows, batch_id)

    with caplog.at_level("DEBUG", "holdfast"):
        job.run(job.operator(Groups(GROUP), sink=sink))

    assert sunk == list(range(BATCH, FILES))
    written = job.ids_written()
    assert len(set(written)) == len(written)
    assert len(written) == 2 * (FILES * ROWS // 2 // GROUP) * GROUP

    CLEANER.wait()
    sweep(job_on_s3.checkpoints, "job", grace_s=0)  # the job itself keeps young orphans
    kept = bucket.keys()
    directories = sorted(key.rpartition("/")[0] for key in kept)
    begin = "checkpoints/job"
    # Two subtasks have a state each.
    assert directories == [f"{begin}/_epoch", *[f"{begin}/chk-3"] * 3, *[f"{begin}/chk-4"] * 3]
    assert job_on_s3.checkpoint_ids() == [3, 4]
    for key in kept:
        assert bucket.uploads(key) == []  # MinIO lists those of one key only

    secret = bucket.server.secret_key
    for log, words in (
        (output, ("DEBUG:botocore", "INFO:holdfast", " INFO ")),
        (caplog.text, ("holdfast",)),
    ):
        assert [
            word for word in words if word not in log
        ] == []  # otherwise the next check proves nothing
        assert secret not in log
    for key in kept:
        assert secret.encode() not in bucket.read(key)


@pytest.fixture
def job_by_boto3(job: Job, minio_bucket: S3Bucket) -> Iterator[Job]:
    """A streaming query whose checkpoints are in a bucket, reached by boto3."""
    server = minio_bucket.server
    job.settings = {
        "spark.holdfast.checkpoint.dir": f"s3://{minio_bucket.name}/checkpoints",
        "spark.holdfast.job.id": "job",
        "spark.holdfast.s3.endpoint": server.endpoint,
        "spark.holdfast.s3.access-key": server.access_key,
        "spark.holdfast.s3.secret-key": server.secret_key,
        "spark.holdfast.s3.path-style-access": "true",
        "spark.holdfast.state.inline-threshold": "0",  # all state is in objects
    }
    yield job
    forget_s3()


def test_job_resumes_through_s3fs_from_state_written_by_boto3(
    job_by_boto3: Job, minio_bucket: S3Bucket
) -> None:
    job = job_by_boto3
    job.feed(files=FILES // 2, rows=ROWS)
    job.run(job.operator(Groups(GROUP)))
    before = len(job.ids_written())
    job.settings["spark.holdfast.checkpoint.dir"] = f"fsspec+s3://{minio_bucket.name}/checkpoints"
    job.feed(files=FILES // 2, rows=ROWS)
    with pytest.raises(StreamingQueryException, match="single-writer"):
        job.run(job.operator(Groups(GROUP)))
    assert len(job.ids_written()) == before
    job.settings["spark.holdfast.checkpoint.single-writer"] = "true"
    job.run(job.operator(Groups(GROUP)))
    written = job.ids_written()
    assert len(written) == len(set(written)) > before
    CLEANER.wait()
    done = [key for key in minio_bucket.keys("") if key.endswith("/_metadata")]
    assert done[-1] == f"checkpoints/job/chk-{FILES}/_metadata"
