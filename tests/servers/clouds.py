"""Google Cloud Storage in memory, and Azurite: each test gets a new, empty bucket or container.

Azurite starts when the first test requests it and stops with the session. If it is not available, its tests are skipped
with the reason.
"""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import obstore
import pytest
from contracts.patience import HANGS_S
from servers import infra
from servers.in_process import serve
from servers.memory_gcs import MemoryGcs

from holdfast.locations import AzureSettings, GcsSettings, use_azure, use_gcs
from holdfast.locations.file_systems import (
    AzureFileSystem,
    ObjectStoreFileSystem,
    ObjectStoreSettings,
    RetryPolicy,
)
from holdfast.testing import HttpFaults, http_faults


@dataclass(frozen=True)
class CloudServer(ABC):
    """A server, with the settings that reach it.

    Attributes:
        settings: Settings of the adapter, with a small part size.
        scheme: Scheme of its locations.
    """

    settings: ObjectStoreSettings
    scheme: str

    @abstractmethod
    def add_bucket(self, name: str) -> None:
        """Create an empty bucket."""

    def file_system(
        self, retries: RetryPolicy | None = None, **changes: Any
    ) -> ObjectStoreFileSystem:
        """Return the adapter, with changed settings."""
        return ObjectStoreFileSystem(replace(self.settings, **changes), retries=retries)

    @abstractmethod
    def use(self, retries: RetryPolicy | None = None, **changes: Any) -> None:
        """Use the server for its scheme in this process, with changed settings."""

    def new_bucket(self) -> "CloudBucket":
        name = f"test-{uuid.uuid4().hex}"
        self.add_bucket(name)
        return CloudBucket(self, name, self.settings.open_store(name))

    @contextmanager
    def faults(self) -> Iterator[tuple[HttpFaults, str]]:
        """Put a proxy before the server; yields its faults and the endpoint for clients."""
        endpoint = urlsplit(self.settings.endpoint or "")
        with http_faults(f"http://{endpoint.netloc}") as faults:
            yield faults, f"{faults.url}{endpoint.path}"


@dataclass(frozen=True)
class CloudBucket:
    """A bucket or container, accessed without the adapter.

    Attributes:
        server: Its server.
        name: Its name.
        store: obstore's store.
    """

    server: CloudServer
    name: str
    store: Any

    @property
    def uri(self) -> str:
        return f"{self.server.scheme}://{self.name}"

    def contents(self, prefix: str = "") -> dict[str, bytes]:
        """Return the objects below a prefix, by name without the prefix."""
        return {
            entry["path"].removeprefix(prefix): obstore.get(self.store, entry["path"])
            .bytes()
            .to_bytes()
            for page in obstore.list(self.store, prefix)
            for entry in page
        }

    def put(self, key: str, data: bytes) -> None:
        obstore.put(self.store, key, data, use_multipart=False)


@dataclass(frozen=True)
class GcsServer(CloudServer):
    """Google's XML API in memory.

    Attributes:
        store: Answers the requests.
    """

    store: MemoryGcs

    def use(self, retries: RetryPolicy | None = None, **changes: Any) -> None:
        settings = replace(self.settings, **changes)
        assert isinstance(settings, GcsSettings)
        use_gcs(settings, retries=retries or RetryPolicy())

    def add_bucket(self, name: str) -> None:
        self.store.add_bucket(name)


@dataclass(frozen=True)
class AzureServer(CloudServer):
    """Azurite.

    Attributes:
        directory: Directory of its files.
    """

    directory: str

    def file_system(
        self, retries: RetryPolicy | None = None, **changes: Any
    ) -> ObjectStoreFileSystem:
        settings = replace(self.settings, **changes)
        assert isinstance(settings, AzureSettings)
        return AzureFileSystem(settings, retries=retries)

    def use(self, retries: RetryPolicy | None = None, **changes: Any) -> None:
        settings = replace(self.settings, **changes)
        assert isinstance(settings, AzureSettings)
        use_azure(settings, retries=retries or RetryPolicy())

    def add_bucket(self, name: str) -> None:
        infra.run("azure", "container", self.directory, name)


_QUICK: dict[str, Any] = {"part_size": 5 << 20, "connect_timeout": HANGS_S, "read_timeout": HANGS_S}


@contextmanager
def gcs_server() -> Iterator[GcsServer]:
    """Serve Google's XML API until the block ends."""
    store = MemoryGcs()
    with serve(store.answer) as endpoint:
        settings = GcsSettings(endpoint=endpoint, anonymous=True, **_QUICK)
        yield GcsServer(settings, "gs", store)


@contextmanager
def azure_server() -> Iterator[AzureServer]:
    """Run Azurite until the block ends."""
    with infra.running("azure") as known:
        values: dict[str, Any] = {**known, **_QUICK}
        directory = values.pop("directory")
        yield AzureServer(AzureSettings(**values), "az", directory)


@pytest.fixture(scope="session")
def memory_gcs() -> Iterator[GcsServer]:
    with gcs_server() as server:
        yield server


@pytest.fixture(scope="session")
def azurite() -> Iterator[AzureServer]:
    with azure_server() as server:
        yield server


AZURE = pytest.mark.exhaustive
"""Marks tests on Azurite, which takes seconds to start and is slow."""

CLOUDS = ("memory_gcs", pytest.param("azurite", marks=AZURE))


@pytest.fixture(params=CLOUDS)
def cloud_bucket(request: pytest.FixtureRequest) -> CloudBucket:
    """A bucket on each of the servers."""
    server: CloudServer = request.getfixturevalue(request.param)
    return server.new_bucket()
