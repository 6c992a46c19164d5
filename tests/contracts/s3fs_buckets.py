"""Buckets accessed through s3fs, and their requests."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from contracts.patience import PATIENT
from servers.buckets import OF_OTHERS, faults_before
from servers.s3 import S3Bucket, settings_of

from holdfast.locations import use_s3
from holdfast.locations.adapters import (
    FileSystem,
    RetryPolicy,
    file_system_for,
    unregister_file_system,
)
from holdfast.locations.file_systems import s3fs
from holdfast.testing import HttpFaults, s3_operation_of

MIB = 1 << 20

SECRET = "the-secret-of-a-test"
TOKEN = "the-token-of-a-test"

NEVER = RetryPolicy(deadline_s=0)
"""Does not retry."""

SCHEMES = ("s3", "s3a", "fsspec+s3", "fsspec+s3a")


@dataclass
class WatchedBucket:
    """A bucket whose proxy records requests and fails on demand."""

    bucket: S3Bucket
    faults: HttpFaults

    @property
    def directory(self) -> str:
        return f"fsspec+s3://{self.bucket.name}/dir"

    @property
    def uri(self) -> str:
        return f"{self.directory}/x"

    def use(self, retries: RetryPolicy = PATIENT, **changes: Any) -> FileSystem:
        """Set the file system for URIs of the bucket from now on, and return it."""
        changes = {"endpoint": self.faults.url, **changes}
        settings = settings_of(self.bucket.server, **changes)
        use_s3(settings, retries=retries)
        return file_system_for(self.directory)

    def counts(self) -> Counter[str]:
        return Counter(s3_operation_of(request) for request in self.faults.requests)


@pytest.fixture(params=["memory", pytest.param("ministack", marks=OF_OTHERS)])
def s3_bucket(request: pytest.FixtureRequest) -> S3Bucket:
    """A bucket in memory, and on a third-party server; the integration tests have MinIO."""
    bucket: S3Bucket = request.getfixturevalue(f"{request.param}_bucket")
    return bucket


@pytest.fixture
def bucket(s3_bucket: S3Bucket) -> Iterator[S3Bucket]:
    """A bucket on each of the servers; its schemes and clients are removed afterwards."""
    yield s3_bucket
    for scheme in SCHEMES:
        unregister_file_system(scheme)
    clients = s3fs.CLIENTS.values
    while clients:
        clients.popitem()[1].close()


@pytest.fixture
def watched_bucket(bucket: S3Bucket) -> Iterator[WatchedBucket]:
    with faults_before(bucket.server, over_http=True) as faults:
        yield WatchedBucket(bucket, faults)


@pytest.fixture
def s3fs_bucket(bucket: S3Bucket) -> S3Bucket:
    """The bucket, accessed by `fsspec+s3://`."""
    use_s3(settings_of(bucket.server), retries=PATIENT)
    return bucket
