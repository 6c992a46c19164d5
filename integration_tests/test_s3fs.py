"""The contract of file systems for S3 through s3fs, on a server."""

from collections.abc import Iterable

import pytest
from contracts.s3_objects import put_many
from servers.s3 import S3Bucket, settings_of

from holdfast.locations.adapters import FileSystem
from holdfast.locations.file_systems import S3fsFileSystem
from holdfast.testing import FileSystemContract


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
