"""S3 through s3fs for real: the contracts on two servers."""

from collections.abc import Iterable, Iterator

import pytest
from contracts.s3_objects import put_many
from servers.s3 import S3Bucket, settings_of

from holdfast.locations import (
    CheckpointStorage,
    FileSystemCheckpointStorage,
    checkpoint_storage,
    use_s3,
)
from holdfast.locations.adapters import FileSystem, unregister_file_system
from holdfast.locations.file_systems import S3fsFileSystem
from holdfast.testing import CheckpointStorageContract, FileSystemContract


def forget_s3() -> None:
    for scheme in ("s3", "s3a", "fsspec+s3", "fsspec+s3a"):
        unregister_file_system(scheme)


@pytest.mark.parametrize("real_s3_bucket", ["minio"], indirect=True)
class TestS3fsFileSystem(FileSystemContract):
    has_directories = False

    @pytest.fixture
    def file_system(self, real_s3_bucket: S3Bucket) -> FileSystem:
        return S3fsFileSystem(settings_of(real_s3_bucket.server))

    @pytest.fixture
    def directory(self, real_s3_bucket: S3Bucket) -> str:
        self.bucket = real_s3_bucket
        return f"fsspec+s3://{real_s3_bucket.name}/directory"

    def files(self, directory: str) -> dict[str, bytes]:
        prefix = f"{self.key(directory)}/"
        keys = self.bucket.keys(prefix)
        return {key.removeprefix(prefix): self.bucket.read(key) for key in keys}

    def put(self, uri: str, data: bytes) -> None:
        self.put_all([uri], data)

    def put_all(self, uris: Iterable[str], data: bytes) -> None:
        put_many(self.bucket, [self.key(uri) for uri in uris], data)

    def key(self, uri: str) -> str:
        return uri.removeprefix(f"fsspec+s3://{self.bucket.name}/")


@pytest.mark.parametrize("real_s3_bucket", ["minio"], indirect=True)
class TestS3fsStorage(CheckpointStorageContract):
    @pytest.fixture
    def storage(
        self, real_s3_bucket: S3Bucket, request: pytest.FixtureRequest
    ) -> Iterator[CheckpointStorage]:
        if "_of_eight_racing_" in request.node.name:
            pytest.skip("it is for a single writer")
        self.bucket = real_s3_bucket
        use_s3(settings_of(real_s3_bucket.server))
        yield checkpoint_storage(
            f"fsspec+s3://{real_s3_bucket.name}/checkpoints", single_writer=True
        )
        forget_s3()
        assert real_s3_bucket.uploads() == []

    def files(self, storage: CheckpointStorage) -> set[str]:
        assert isinstance(storage, FileSystemCheckpointStorage)
        return {f"fsspec+s3://{self.bucket.name}/{key}" for key in self.bucket.keys("")}
