"""Buckets that tests reach through s3fs, and what is asked of them."""

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
"""Repeats nothing."""

SCHEMES = ("s3", "s3a", "fsspec+s3", "fsspec+s3a")


@dataclass
class Watched:
    """A bucket behind a proxy that notes what is asked for, and fails when it is told to."""

    bucket: S3Bucket
    faults: HttpFaults

    @property
    def directory(self) -> str:
        return f"fsspec+s3://{self.bucket.name}/dir"

    @property
    def uri(self) -> str:
        return f"{self.directory}/x"

    def use(self, retries: RetryPolicy = PATIENT, **changes: Any) -> FileSystem:
        """What URIs of the bucket lead to, from now on."""
        changes = {"endpoint": self.faults.url, **changes}
        settings = settings_of(self.bucket.server, **changes)
        use_s3(settings, retries=retries)
        return file_system_for(self.directory)

    def counts(self) -> Counter[str]:
        return Counter(s3_operation_of(request) for request in self.faults.requests)


@pytest.fixture(params=["memory", pytest.param("ministack", marks=OF_OTHERS)])
def s3_bucket(request: pytest.FixtureRequest) -> S3Bucket:
    """A bucket in memory, and on a server that somebody else has written; the integration tests have MinIO."""
    bucket: S3Bucket = request.getfixturevalue(f"{request.param}_bucket")
    return bucket


@pytest.fixture
def bucket(s3_bucket: S3Bucket) -> Iterator[S3Bucket]:
    """A bucket on each of the servers; afterwards nothing is left of how it was reached."""
    yield s3_bucket
    for scheme in SCHEMES:
        unregister_file_system(scheme)
    clients = s3fs.CLIENTS.values
    while clients:
        clients.popitem()[1].close()


@pytest.fixture
def watched(bucket: S3Bucket) -> Iterator[Watched]:
    with faults_before(bucket.server, over_http=True) as faults:
        yield Watched(bucket, faults)


@pytest.fixture
def used(bucket: S3Bucket) -> S3Bucket:
    """The bucket, reached by `fsspec+s3://`."""
    use_s3(settings_of(bucket.server), retries=PATIENT)
    return bucket
