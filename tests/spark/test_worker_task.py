"""Tasks in Python workers: what a task does once and the next one need not repeat."""

import importlib
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from zipfile import ZipFile

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from holdfast.spark.worker_task import worker_task

needs_linux = pytest.mark.skipif(
    not hasattr(socket, "TCP_QUICKACK"), reason="only Linux has this option of a socket"
)

_DIRECTORY = b"PK\1\2"
"""The start of an archive's directory."""


@worker_task
def pass_rows(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from rows


def is_immediate(connection: socket.socket) -> tuple[bool, bool]:
    """Return whether a connection sends, and acknowledges, without delay."""
    options = (socket.TCP_NODELAY, socket.TCP_QUICKACK)
    sends, acknowledges = (connection.getsockopt(socket.IPPROTO_TCP, name) for name in options)
    return sends != 0, acknowledges != 0


@worker_task
def connection_options(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the number of connections within the host, and the number of them without delays, at the start of a task."""
    options = []
    for file in os.listdir("/proc/self/fd"):
        try:
            connection = socket.socket(fileno=int(file))
        except OSError:
            continue
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            options.append(is_immediate(connection))
        connection.detach()
    list(rows)
    yield pa.record_batch({"all": [len(options)], "immediate": [options.count((True, True))]})


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an archive on the path with two packages; the first is imported."""
    path = tmp_path / "archive.zip"
    with ZipFile(path, "w") as zipped:
        for package in ("holdfast_first", "holdfast_second"):
            zipped.writestr(f"{package}/__init__.py", "")
            zipped.writestr(f"{package}/module.py", "")
    monkeypatch.syspath_prepend(str(path))
    importlib.import_module("holdfast_first.module")
    return path


def test_archive_after_a_task_is_not_read_again(archive: Path) -> None:
    list(pass_rows([]))
    content = archive.read_bytes()
    archive.write_bytes(content[: content.index(_DIRECTORY)])
    importlib.invalidate_caches()
    assert importlib.import_module("holdfast_second.module").__file__ is not None


@needs_linux
@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_connection_within_the_host_has_no_delays(
    family: socket.AddressFamily, address: str
) -> None:
    with socket.socket(family) as server, socket.socket(family) as client:
        try:
            server.bind((address, 0))
        except OSError:
            pytest.skip(f"the host has no address {address}")
        server.listen()
        client.connect(server.getsockname())
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        assert is_immediate(client) == (False, False)
        assert list(pass_rows([])) == []
        assert is_immediate(client) == (True, True)


def test_other_open_files_are_unchanged(tmp_path: Path) -> None:
    local, peer = socket.socketpair()
    with (
        (tmp_path / "file").open("w") as file,
        socket.socket() as unconnected,
        local,
        peer,
        socket.socket(type=socket.SOCK_DGRAM) as datagrams,
    ):
        datagrams.connect(("127.0.0.1", 9))
        assert list(pass_rows([])) == []
        assert unconnected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0
        assert (
            file.write("still open") == local.send(b"still open") == datagrams.send(b"still open")
        )


@needs_linux
def test_connections_of_a_worker_have_no_delays(spark: SparkSession) -> None:
    rows = spark.range(0, 1, 1, 1).mapInArrow(connection_options, "all long, immediate long")
    (row,) = rows.collect()
    assert row.immediate == row.all > 0
