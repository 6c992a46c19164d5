"""Buckets of the tests that need S3: in this process, and on third-party servers.

`memory_bucket` costs next to nothing. Tests that depend on a server's implementation of S3 run on moto as
well, with `exhaustive`, or on ministack if moto lacks a feature; the integration tests run on MinIO and versitygw.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest
from servers.in_process import in_process_faults, serve
from servers.memory_s3 import MemoryS3
from servers.s3 import S3Bucket, S3Server

from holdfast.locations.file_systems import s3_client
from holdfast.testing import HttpFaults, http_faults


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryS3Server(S3Server):
    """S3 in memory, which other processes can access too.

    Attributes:
        store: Answers the requests.
    """

    store: MemoryS3 = field(repr=False)
    _clients: list[Any] = field(default_factory=list, repr=False, compare=False)

    @contextmanager
    def new_bucket(self) -> Iterator[S3Bucket]:
        if not self._clients:  # making one takes as long as the requests of ten tests
            self._clients.append(self.client())
        bucket = MemoryBucket(self, f"test-{uuid.uuid4().hex}", self._clients[0])
        self.store.add_bucket(bucket.name)
        yield bucket
        self.store.drop_bucket(bucket.name)


@dataclass(frozen=True, slots=True)
class MemoryBucket(S3Bucket):
    """A bucket whose content is read without requests."""

    @property
    def _store(self) -> MemoryS3:
        assert isinstance(self.server, MemoryS3Server)
        return self.server.store

    def keys(self, prefix: str = "") -> list[str]:
        return self._store.keys(self.name, prefix)

    def uploads(self, prefix: str = "") -> list[tuple[str, str]]:
        return self._store.uploads(self.name, prefix)

    def read(self, key: str) -> bytes:
        return self._store.read(self.name, key)

    def age(self, seconds: float) -> None:
        """Make all objects older."""
        self._store.age(self.name, seconds)

    def put(self, key: str, data: bytes) -> None:
        self._store.put(self.name, key, data)


@contextmanager
def memory_server() -> Iterator[MemoryS3Server]:
    store = MemoryS3()
    with serve(store.answer) as endpoint:
        yield MemoryS3Server(name="memory", endpoint=endpoint, store=store)


@contextmanager
def faults_before(server: S3Server, *, over_http: bool = False) -> Iterator[HttpFaults]:
    """Put faults between clients and the server.

    Args:
        server: The server.
        over_http: Whether requests use a network, as those of clients without urllib3 must.
    """
    if isinstance(server, MemoryS3Server) and not over_http:
        with in_process_faults(server.store.answer) as faults:
            yield faults
    else:
        with http_faults(server.endpoint) as faults:
            yield faults
        forget_clients(faults.url)


def forget_clients(url: str | None) -> None:
    """Close this process's clients of a stopped server."""
    connections = s3_client.CONNECTIONS.values
    for settings in [settings for settings in connections if settings.endpoint == url]:
        connections.pop(settings).client.close()


@pytest.fixture(scope="session")
def memory_s3() -> Iterator[MemoryS3Server]:
    with described_once(), memory_server() as server:
        yield server


@contextmanager
def described_once() -> Iterator[None]:
    """Make botocore read its description of S3 only once, instead of for each client: 0.1 s of CPU."""
    from botocore.loaders import JSONFileLoader  # slow to import

    load = JSONFileLoader.load_file
    known: dict[str, Any] = {}

    def load_once(loader: Any, path: str) -> Any:
        if path not in known:
            known[path] = load(loader, path)
        return known[path]

    with mock.patch.object(JSONFileLoader, "load_file", load_once):
        yield


@pytest.fixture
def memory_bucket(memory_s3: MemoryS3Server) -> Iterator[S3Bucket]:
    with memory_s3.new_bucket() as bucket:
        yield bucket


OF_OTHERS = pytest.mark.exhaustive
"""Marks tests on third-party servers, which are slower, and independent of our view of S3."""


@pytest.fixture(params=["memory", pytest.param("moto", marks=OF_OTHERS)])
def s3_bucket(request: pytest.FixtureRequest) -> S3Bucket:
    """A bucket on each of the servers without a network."""
    bucket: S3Bucket = request.getfixturevalue(f"{request.param}_bucket")
    return bucket
