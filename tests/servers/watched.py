"""Buckets whose proxy records requests."""

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
    """Delete the content of a bucket with few requests; its fixture needs one for each object."""
    keys = bucket.keys("")
    for first in range(0, len(keys), 1000):
        objects = [{"Key": key} for key in keys[first : first + 1000]]
        bucket.client.delete_objects(Bucket=bucket.name, Delete={"Objects": objects})


@dataclass
class WatchedBucket:
    """A bucket whose proxy records requests."""

    bucket: S3Bucket
    faults: HttpFaults

    @property
    def directory(self) -> str:
        return f"s3://{self.bucket.name}/dir"

    def file_system(self, **changes: Any) -> S3FileSystem:
        values = {"endpoint": self.faults.url, "state_files": "boto3", **changes}
        settings = settings_of(self.bucket.server, **values)
        return S3FileSystem(settings, retries=SOON)

    def request_headers(self, name: str) -> list[dict[str, str]]:
        """Return the headers of all requests of an operation."""
        match = s3_operation(name)
        return [dict(request.headers) for request in self.faults.requests if match(request)]

    def counts(self) -> Counter[str]:
        return Counter(s3_operation_of(request) for request in self.faults.requests)


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> Iterator[S3Bucket]:
    """A bucket in memory, or on the server in a parameter of the test."""
    made: S3Bucket = request.getfixturevalue(getattr(request, "param", "memory_bucket"))
    yield made
    empty(made)


@pytest.fixture(name="watched")
def watched_bucket(bucket: S3Bucket) -> Iterator[WatchedBucket]:
    with faults_before(bucket.server) as faults:
        yield WatchedBucket(bucket, faults)


@pytest.fixture
def watched_over_http(bucket: S3Bucket) -> Iterator[WatchedBucket]:
    """A bucket with recorded requests for obstore and other processes, which need a network."""
    with faults_before(bucket.server, over_http=True) as faults:
        yield WatchedBucket(bucket, faults)
