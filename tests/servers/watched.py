"""Buckets behind a proxy that notes what is asked for."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from servers.s3 import S3Bucket, settings_of

from holdfast.locations import RetryPolicy, S3FileSystem
from holdfast.locations.file_systems.s3 import s3_client
from holdfast.testing import HttpFaults, http_faults, s3_operation, s3_operation_of

SOON = RetryPolicy(deadline_s=0.05, first_wait_s=0.001, longest_wait_s=0.002)


def forget_clients(url: str | None) -> None:
    connections = s3_client._CONNECTIONS._values
    for settings in [settings for settings in connections if settings.endpoint_url == url]:
        connections.pop(settings).client.close()


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
        values = {"endpoint_url": self.faults.url, "state_files": "boto3", **changes}
        settings = settings_of(self.bucket.server, **values)
        return S3FileSystem(settings, retries=SOON)

    def asked(self, name: str) -> list[dict[str, str]]:
        """Headers of the requests of one kind."""
        match = s3_operation(name)
        return [dict(one.headers) for one in self.faults.requests if match(one)]

    def counts(self) -> Counter[str]:
        return Counter(s3_operation_of(request) for request in self.faults.requests)


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> Iterator[S3Bucket]:
    """A bucket on moto, or on the server that a test is parametrized with."""
    found: S3Bucket = request.getfixturevalue(getattr(request, "param", "moto_bucket"))
    yield found
    empty(found)


@pytest.fixture
def watched(bucket: S3Bucket) -> Iterator[Watched]:
    with http_faults(bucket.server.endpoint) as faults:
        yield Watched(bucket, faults)
    forget_clients(faults.url)
