"""Empty directories in all stores of the rows; servers run until the block ends."""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from unittest import mock

from servers.buckets import faults_before, memory_server
from servers.clouds import CloudServer, azure_server, gcs_server
from servers.hdfs import hdfs_server
from servers.s3 import S3Server, real_server, settings_of

from holdfast.locations import use_s3
from holdfast.locations.adapters import RetryPolicy
from holdfast.testing import HttpFaults

STORES: Mapping[str, str] = {
    "memory": "in memory",
    "local": "on a local disk",
    "s3-memory": "on S3, by a server in memory",
    "minio": "on S3, by MinIO",
    "versitygw": "on S3, by versitygw",
    "gcs-memory": "on Google Cloud Storage, by a server in memory",
    "azurite": "on Azure Storage, by Azurite",
    "hdfs": "on HDFS",
}
"""Descriptions of stores by name."""

SERVERS = frozenset({"minio", "versitygw", "azurite", "hdfs"})
"""Stores in separate processes."""

_CLOUDS: Mapping[str, Callable[[], AbstractContextManager[CloudServer]]] = {
    "gcs-memory": gcs_server,
    "azurite": azure_server,
}


@contextmanager
def empty_directory(store: str) -> Iterator[str]:
    """Yield the URI of an empty directory in the store.

    Raises:
        pytest.skip.Exception: The server can't run here.
    """
    if store == "memory":
        yield "memory:///proof"
    elif store == "local":
        with tempfile.TemporaryDirectory() as directory:
            yield f"file://{directory}/proof"
    elif store == "hdfs":
        with hdfs_server() as hdfs:
            environment = {"HADOOP_CONF_DIR": str(hdfs.conf_dir)}
            with mock.patch.dict(os.environ, environment), hdfs.new_directory() as directory:
                yield directory.uri
    elif store == "s3-memory":
        with memory_server() as in_memory, _bucket(in_memory) as uri:
            yield uri
    elif store in _CLOUDS:
        with _CLOUDS[store]() as cloud:
            cloud.use()
            yield f"{cloud.new_bucket().uri}/proof"
    else:
        with real_server(store) as server, _bucket(server) as uri:
            yield uri


@contextmanager
def _bucket(server: S3Server) -> Iterator[str]:
    with server.new_bucket() as bucket:
        use_s3(settings_of(server), bucket.name)
        yield f"s3://{bucket.name}/proof"


@dataclass(frozen=True, slots=True)
class FaultyStore:
    """An empty directory, whose requests can fail.

    Attributes:
        directory: Its URI.
        faults: The faults of requests.
        use: Sets the retries of this process.
    """

    directory: str
    faults: HttpFaults
    use: Callable[[RetryPolicy], None]


@contextmanager
def faulty_store(store: str) -> Iterator[FaultyStore]:
    """Yield an empty directory in a store that is reached by HTTP: `s3-memory`, `gcs-memory` or `azurite`.

    Raises:
        pytest.skip.Exception: The server can't run here.
    """
    if store == "s3-memory":
        with (
            memory_server() as server,
            server.new_bucket() as bucket,
            faults_before(server) as faults,
        ):
            settings = settings_of(server, endpoint=faults.url, state_files="boto3")
            yield FaultyStore(
                f"s3://{bucket.name}/proof",
                faults,
                lambda retries: use_s3(settings, bucket.name, retries=retries),
            )
        return
    with _CLOUDS[store]() as cloud, cloud.faults() as (faults, endpoint):
        yield FaultyStore(
            f"{cloud.new_bucket().uri}/proof",
            faults,
            lambda retries: cloud.use(retries, endpoint=endpoint),
        )
