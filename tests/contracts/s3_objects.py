"""Objects that tests of S3 write, and the servers on which they run."""

import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from servers.buckets import OF_OTHERS
from servers.s3 import S3Bucket, settings_of
from servers.watched import SOON

from holdfast.locations import use_s3
from holdfast.locations.adapters import (
    FileStatus,
    file_system_for,
    register_file_system,
    unregister_file_system,
)
from holdfast.locations.file_systems import PROBE_PREFIX, S3FileSystem

MIB = 1 << 20

on_each_server = pytest.mark.parametrize(
    "bucket",
    ["memory_bucket", pytest.param("moto_bucket", marks=OF_OTHERS)],
    indirect=True,
)
only_on_ministack = pytest.mark.parametrize(
    "bucket", [pytest.param("ministack_bucket", marks=OF_OTHERS)], indirect=True
)


def content(file_system: Any, uri: str) -> bytes:
    with file_system.open(uri) as stream:
        data: bytes = stream.read()
    return data


@pytest.fixture
def file_system(bucket: S3Bucket) -> S3FileSystem:
    return S3FileSystem(settings_of(bucket.server, state_files="boto3"), retries=SOON)


@pytest.fixture
def directory(bucket: S3Bucket) -> str:
    return f"s3://{bucket.name}/dir"


@pytest.fixture
def s3(bucket: S3Bucket) -> Iterator[S3Bucket]:
    """The bucket, accessed by `s3://` and `s3a://`."""
    use_s3(settings_of(bucket.server))
    yield bucket
    unregister_file_system("s3")
    unregister_file_system("s3a")


@pytest.fixture
def small_parts(bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let moto accept parts of any size, like the other servers."""
    if "moto.s3.models" in sys.modules:
        monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)


def put_many(bucket: S3Bucket, keys: list[str], data: bytes = b"") -> None:
    """Store the same data under many keys; in memory and in moto without requests."""
    if bucket.server.name == "memory":
        for key in keys:
            bucket.put(key, data)
        return
    if bucket.server.name == "moto":
        import moto.s3.models  # slow to import

        backend = next(
            s3_backend["aws"]
            for s3_backend in moto.s3.models.s3_backends.values()
            if bucket.name in s3_backend["aws"].buckets
        )
        for key in keys:
            backend.put_object(bucket.name, key, data)
        return

    def put(key: str) -> None:
        bucket.client.put_object(Bucket=bucket.name, Key=key, Body=data)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, keys))


@contextmanager
def later(directory: str, *, seconds: float) -> Iterator[None]:
    """Continue after some seconds: the probe with which a sweep reads the bucket's clock is that much younger."""
    inner = file_system_for(directory).inner
    assert isinstance(inner, S3FileSystem)
    settings = inner.settings

    class Later(S3FileSystem):
        def list(self, uri: str, /) -> Iterable[FileStatus]:
            return [
                replace(entry, modified_ms=entry.modified_ms + int(1000 * seconds))
                if f"/{PROBE_PREFIX}" in entry.uri
                else entry
                for entry in super().list(uri)
            ]

    register_file_system("s3", lambda: Later(settings))
    try:
        yield
    finally:
        unregister_file_system("s3")
        use_s3(settings)
