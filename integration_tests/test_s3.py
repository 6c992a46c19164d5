"""S3 for real: the contracts on two servers, and a Spark job whose checkpoints are on one of them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from contracts.patience import RUN_HANGS_S
from contracts.s3_objects import put_many
from jobs.job import Job
from jobs.killed import BATCH, GROUP
from jobs.operators import Groups
from pyspark.sql import DataFrame
from servers.s3 import S3Bucket, settings_of

from holdfast.locations import (
    CheckpointStorage,
    FileSystemCheckpointStorage,
    checkpoint_storage,
    sweep,
    use_s3,
)
from holdfast.locations.adapters import unregister_file_system
from holdfast.locations.file_systems import S3FileSystem
from holdfast.spark.query import CLEANER
from holdfast.testing import CheckpointStorageContract, ExclusiveFileSystemContract

FILES = 4
ROWS = 100
RETAINED = 2

TESTS = Path(__file__).parents[1] / "tests"

WRITE_AND_DIE = """
import os, signal, sys
from holdfast.locations import S3Settings, use_s3
from holdfast.locations.adapters import file_system_for

use_s3(S3Settings(
    endpoint_url=sys.argv[2], region="us-east-1", path_style=True, part_bytes=5 << 20,
    access_key=os.environ["ACCESS_KEY"], secret_key=os.environ["SECRET_KEY"],
))
stream = file_system_for(sys.argv[1]).create(sys.argv[1])
stream.write(bytes(40 << 20))
os.kill(os.getpid(), signal.SIGKILL)
"""

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
    killed.main(Path(sys.argv[1]), sys.argv[2])
"""
"""The driver of `jobs.killed`, as talkative as can be."""


@pytest.fixture
def s3_reaches(real_s3_bucket: S3Bucket) -> Iterator[S3Bucket]:
    """The bucket's server is what `s3://` leads to."""
    use_s3(settings_of(real_s3_bucket.server))
    yield real_s3_bucket
    for scheme in ("s3", "s3a"):
        unregister_file_system(scheme)


@pytest.fixture
def races(request: pytest.FixtureRequest, real_s3_bucket: S3Bucket) -> None:
    """Skip a test of races where the server has no atomic conditions."""
    is_race = "_of_eight_racing_" in request.node.name
    if is_race and real_s3_bucket.server.name == "versitygw":
        pytest.skip("versitygw looks and writes in two steps: its conditions are not atomic")


@pytest.mark.usefixtures("races")
class TestS3FileSystem(ExclusiveFileSystemContract):
    has_directories = False

    @pytest.fixture(params=["boto3", "obstore"])
    def file_system(self, request: pytest.FixtureRequest, real_s3_bucket: S3Bucket) -> S3FileSystem:
        return S3FileSystem(settings_of(real_s3_bucket.server, state_files=request.param))

    @pytest.fixture
    def directory(self, real_s3_bucket: S3Bucket) -> str:
        self.bucket = real_s3_bucket
        return f"s3://{real_s3_bucket.name}/directory"

    def files(self, directory: str) -> dict[str, bytes]:
        prefix = f"{self.key(directory)}/"
        keys = self.bucket.keys(prefix)
        return {key.removeprefix(prefix): self.bucket.read(key) for key in keys}

    def put(self, uri: str, data: bytes) -> None:
        self.put_all([uri], data)

    def put_all(self, uris: Iterable[str], data: bytes) -> None:
        put_many(self.bucket, [self.key(uri) for uri in uris], data)

    def key(self, uri: str) -> str:
        return uri.removeprefix(f"s3://{self.bucket.name}/")


@pytest.mark.parametrize("state_files", ["boto3", "obstore"])
@pytest.mark.parametrize("checksum", ["crc32c", "off"])
def test_requests_are_signed_as_the_server_expects_it(
    real_s3_bucket: S3Bucket, state_files: str, checksum: str
) -> None:
    settings = settings_of(
        real_s3_bucket.server, state_files=state_files, checksum=checksum, part_bytes=5 << 20
    )
    file_system = S3FileSystem(settings)
    for name, size in (("ä ö+&=%2F~!()'*;,", 10), ("größe #?@:$", 11 << 20)):
        data = os.urandom(size)
        uri = f"s3://{real_s3_bucket.name}/dir/{name}"
        stream = file_system.create(uri)
        stream.write(data)
        stream.commit()
        with file_system.open(uri) as file:
            assert file.read() == data
        assert real_s3_bucket.read(f"dir/{name}") == data


@pytest.mark.usefixtures("races")
class TestS3CheckpointStorage(CheckpointStorageContract):
    @pytest.fixture
    def storage(self, s3_reaches: S3Bucket) -> CheckpointStorage:
        self.bucket = s3_reaches
        return checkpoint_storage(
            f"s3://{s3_reaches.name}/checkpoints",
            single_writer=s3_reaches.server.name == "versitygw",
        )

    def files(self, storage: CheckpointStorage) -> set[str]:
        assert isinstance(storage, FileSystemCheckpointStorage)
        keys = self.bucket.keys(f"{storage.directory.removeprefix(f's3://{self.bucket.name}/')}/")
        return {f"s3://{self.bucket.name}/{key}" for key in keys}

    @pytest.fixture(autouse=True)
    def no_upload_dangles(self, s3_reaches: S3Bucket) -> Iterator[None]:
        yield
        assert s3_reaches.uploads() == []


@dataclass
class JobOnS3:
    """A streaming query whose checkpoints are in a bucket, reached as Hadoop's settings say."""

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

    def completed(self) -> list[int]:
        """Ids of the completed checkpoints, looked up behind the library's back."""
        return sorted(
            int(key.split("/")[2].removeprefix("chk-"))
            for key in self.bucket.keys("checkpoints")
            if key.endswith("/_metadata")
        )

    def run_until_killed(self, point: str) -> str:
        """Run it in a driver that dies at that point in its second batch; all that it said."""
        defaults = self.job.directory / "conf" / "spark-defaults.conf"
        defaults.parent.mkdir()
        defaults.write_text("".join(f"{k} {v}\n" for k, v in self.job.settings.items()))
        with open(self.job.directory / "log", "w+b") as log:
            died = subprocess.run(
                [sys.executable, "-c", DRIVER, str(self.job.directory), point],
                cwd=TESTS,
                env={
                    **os.environ,
                    "PYTHONPATH": str(TESTS),
                    "SPARK_CONF_DIR": str(defaults.parent),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=RUN_HANGS_S,
                check=False,
            )
            log.seek(0)
            said = log.read().decode(errors="replace")
        assert died.returncode == -signal.SIGKILL, said[-3000:]
        return said


@pytest.fixture
def job_on_s3(job: Job, minio_bucket: S3Bucket) -> Iterator[JobOnS3]:
    yield JobOnS3(job, minio_bucket)
    for scheme in ("s3", "s3a"):
        unregister_file_system(scheme)


@pytest.mark.parametrize("point", ["before the metadata", "after the metadata"])
def test_a_killed_job_goes_on_and_leaves_only_what_it_retains(
    job_on_s3: JobOnS3, point: str, caplog: pytest.LogCaptureFixture
) -> None:
    job, bucket = job_on_s3.job, job_on_s3.bucket
    job.feed(files=FILES, rows=ROWS)
    said = job_on_s3.run_until_killed(point)
    survived = point == "after the metadata"
    assert job_on_s3.completed()[-1] == (BATCH + 1 if survived else BATCH)

    sunk: list[int] = []

    def sink(rows: DataFrame, batch_id: int) -> None:
        sunk.append(batch_id)
        job.write(rows, batch_id)

    with caplog.at_level("DEBUG", "holdfast"):
        job.run(job.operator(Groups(GROUP), sink=sink))

    assert sunk == list(range(BATCH + 1 if survived else BATCH, FILES))
    written = job.ids_written()
    assert len(set(written)) == len(written)
    assert len(written) == 2 * (FILES * ROWS // 2 // GROUP) * GROUP

    CLEANER.wait()
    sweep(job_on_s3.checkpoints, "job", grace_s=0)  # the job itself leaves young orphans alone
    kept = bucket.keys()
    directories = sorted(key.rpartition("/")[0] for key in kept)
    begin = "checkpoints/job"
    # Two subtasks have a state each.
    assert directories == [f"{begin}/_epoch", *[f"{begin}/chk-3"] * 3, *[f"{begin}/chk-4"] * 3]
    assert job_on_s3.completed() == [3, 4]
    for key in kept:
        assert bucket.uploads(key) == []  # MinIO lists those of one key only

    secret = bucket.server.secret_key
    for log, words in (
        (said, ("DEBUG:botocore", "INFO:holdfast", " INFO ")),
        (caplog.text, ("holdfast",)),
    ):
        assert [word for word in words if word not in log] == []  # it is worth looking into
        assert secret not in log
    for key in kept:
        assert secret.encode() not in bucket.read(key)


def test_the_sweep_aborts_uploads_of_killed_writers(versitygw_bucket: S3Bucket) -> None:
    # MinIO would not list them.
    server = versitygw_bucket.server
    uri = f"s3://{versitygw_bucket.name}/checkpoints/job/chk-1/{'0' * 32}"
    directory = f"s3://{versitygw_bucket.name}/checkpoints"
    died = subprocess.run(
        [sys.executable, "-c", WRITE_AND_DIE, uri, server.endpoint],
        env={**os.environ, "ACCESS_KEY": server.access_key, "SECRET_KEY": server.secret_key},
        check=False,
    )
    assert died.returncode == -signal.SIGKILL
    assert len(versitygw_bucket.uploads()) == 1
    use_s3(settings_of(versitygw_bucket.server))
    try:
        storage = checkpoint_storage(directory, single_writer=True)
        storage.create_checkpoint_storage("job").claim_job()
        time.sleep(1.1)  # the server's clock tells seconds
        sweep(directory, "job", grace_s=0)
    finally:
        for scheme in ("s3", "s3a"):
            unregister_file_system(scheme)
    assert versitygw_bucket.uploads() == []
