"""Buckets behind a proxy that notes what is asked for."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from servers.buckets import faults_before
from servers.s3 import S3Bucket, settings_of

from holdfast.locations.adapters import RetryPolicy
from holdfast.locations.file_systems import S3FileSystem
from holdfast.testing import HttpFaults, s3_operation, s3_operation_of

SOON = RetryPolicy(deadline_s=0.05, first_wait_s=0.001, max_wait_s=0.002)


def empty(bucket: S3Bucket) -> None:
    """Delete what is in the bucket by few requests; its fixture takes one for each."""
    keys = bucket.keys("")
    for first in range(0, len(keys), 1000):
        objects = [{"Key": key} for key in keys[first : first + 1000]]
        bucket.client.delete_objects(Bucket=bucket.name, Delete={"Objects": objects})


@dataclass
class Watched:
    """A bucket behind a proxy that notes what is asked for."""

    bucket: S3Bucket
    faults: HttpFaults

    @property
    def directory(self) -> str:
        return f"s3://{self.bucket.name}/dir"

    def file_system(self, **changes: Any) -> S3FileSystem:
        values = {"endpoint": self.faults.url, "state_files": "boto3", **changes}
        settings = settings_of(self.bucket.server, **values)
        return S3FileSystem(settings, retries=SOON)

    def asked(self, name: str) -> list[dict[str, str]]:
        """Headers of the requests of one kind."""
        match = s3_operation(name)
        return [dict(request.headers) for request in self.faults.requests if match(request)]

    def counts(self) -> Counter[str]:
        return Counter(s3_operation_of(request) for request in self.faults.requests)


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> Iterator[S3Bucket]:
    """A bucket in memory, or on the server that a test is parametrized with."""
    made: S3Bucket = request.getfixturevalue(getattr(request, "param", "memory_bucket"))
    yield made
    empty(made)


@pytest.fixture
def watched(bucket: S3Bucket) -> Iterator[Watched]:
    with faults_before(bucket.server) as faults:
        yield Watched(bucket, faults)


@pytest.fixture
def watched_over_http(bucket: S3Bucket) -> Iterator[Watched]:
    """The same for what reaches no server in this process: obstore, and other processes."""
    with faults_before(bucket.server, over_http=True) as faults:
        yield Watched(bucket, faults)
