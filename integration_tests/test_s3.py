"""The contracts on two S3 servers, and the uploads that a killed writer leaves there."""

import os
import time
from collections.abc import Iterable, Iterator

import pytest
from contracts.s3_objects import put_many
from jobs.processes import run_until_killed
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
from holdfast.testing import CheckpointStorageContract, ExclusiveFileSystemContract

WRITE_AND_DIE = """
import os, signal, sys
from holdfast.locations import S3Settings, use_s3
from holdfast.locations.adapters import file_system_for

use_s3(S3Settings(
    endpoint=sys.argv[2], region="us-east-1", path_style_access=True, part_size=5 << 20,
    access_key=os.environ["ACCESS_KEY"], secret_key=os.environ["SECRET_KEY"],
))
stream = file_system_for(sys.argv[1]).create(sys.argv[1])
stream.write(bytes(40 << 20))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def s3_reaches(real_s3_bucket: S3Bucket) -> Iterator[S3Bucket]:
    """The bucket, with `s3://` leading to its server."""
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


@pytest.mark.parametrize(
    ("real_s3_bucket", "state_files"),
    [("minio", "boto3"), ("versitygw", "obstore")],  # each once: the wire is alike
    indirect=True,
)
@pytest.mark.usefixtures("races")
class TestS3FileSystem(ExclusiveFileSystemContract):
    has_directories = False

    @pytest.fixture
    def state_files(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def file_system(self, state_files: str, real_s3_bucket: S3Bucket) -> S3FileSystem:
        return S3FileSystem(settings_of(real_s3_bucket.server, state_files=state_files))

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
def test_request_signatures_are_accepted_by_the_server(
    real_s3_bucket: S3Bucket, state_files: str, checksum: str
) -> None:
    settings = settings_of(
        real_s3_bucket.server, state_files=state_files, checksum=checksum, part_size=5 << 20
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
    def check_no_upload_is_left(self, s3_reaches: S3Bucket) -> Iterator[None]:
        yield
        assert s3_reaches.uploads() == []


def test_sweep_aborts_uploads_of_killed_writers(versitygw_bucket: S3Bucket) -> None:
    # MinIO would not list them.
    server = versitygw_bucket.server
    uri = f"s3://{versitygw_bucket.name}/checkpoints/job/chk-1/{'0' * 32}"
    directory = f"s3://{versitygw_bucket.name}/checkpoints"
    keys = {"ACCESS_KEY": server.access_key, "SECRET_KEY": server.secret_key}
    run_until_killed("-c", WRITE_AND_DIE, uri, server.endpoint, environment=keys)
    assert len(versitygw_bucket.uploads()) == 1
    use_s3(settings_of(versitygw_bucket.server))
    try:
        storage = checkpoint_storage(directory, single_writer=True)
        storage.create_checkpoint_storage("job").claim_job()
        time.sleep(1.1)  # the server's clock has a resolution of seconds
        sweep(directory, "job", grace_s=0)
    finally:
        for scheme in ("s3", "s3a"):
            unregister_file_system(scheme)
    assert versitygw_bucket.uploads() == []
