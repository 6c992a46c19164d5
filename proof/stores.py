"""Empty directories in all stores of the rows; servers run until the block ends."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from unittest import mock

from servers.buckets import memory_server
from servers.hdfs import hdfs_server
from servers.s3 import S3Server, real_server, settings_of

from holdfast.locations import use_s3

STORES: Mapping[str, str] = {
    "memory": "in memory",
    "local": "on a local disk",
    "s3-memory": "on S3, by a server in memory",
    "minio": "on S3, by MinIO",
    "versitygw": "on S3, by versitygw",
    "hdfs": "on HDFS",
}
"""Descriptions of stores by name."""

SERVERS = frozenset({"minio", "versitygw", "hdfs"})
"""Stores in separate processes."""


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
    else:
        with real_server(store) as server, _bucket(server) as uri:
            yield uri


@contextmanager
def _bucket(server: S3Server) -> Iterator[str]:
    with server.new_bucket() as bucket:
        use_s3(settings_of(server), bucket.name)
        yield f"s3://{bucket.name}/proof"
