"""Faults of HDFS, policies of waiting for it, and checks of files afterwards."""

import functools
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import hdfs_native
import pytest
from contracts.patience import HANGS_S
from servers.hdfs import HdfsDirectory, HdfsServer, NameNodeProxy, name_node_proxy

from holdfast.common import uripath
from holdfast.errors import StorageUnavailableError
from holdfast.locations.adapters import (
    FileOutputStream,
    RetryPolicy,
    file_system_for,
    register_file_system,
    unregister_file_system,
)
from holdfast.locations.file_systems import HdfsFileSystem, Retrier, RetryingExclusiveFileSystem
from holdfast.locations.file_systems.hdfs_client import (
    CLIENTS,
    HdfsClient,
    HdfsPatience,
    client_for,
)
from holdfast.locations.file_systems.hdfs_streams import HdfsOutputStream

MIB = 1 << 20

SOON = RetryPolicy(deadline_s=0.2, first_wait_s=0.01, max_wait_s=0.02)
"""Fails at once; for calls that never succeed."""

PATIENT = RetryPolicy(deadline_s=HANGS_S, first_wait_s=0.01, max_wait_s=0.1)
"""Retries for longer than any test takes."""

IMPATIENT = HdfsPatience(waits_in_streams=False)
"""Does not wait for a NameNode that is down."""

Use = Callable[..., RetryingExclusiveFileSystem]
"""Takes a `RetryPolicy`, and a `HdfsPatience` to replace the default."""


@pytest.fixture
def use() -> Iterator[Use]:
    """Access `hdfs://` with a policy."""

    def register(
        policy: RetryPolicy, patience: HdfsPatience | None = None
    ) -> RetryingExclusiveFileSystem:
        register_file_system(
            "hdfs", lambda: HdfsFileSystem(retries=policy, patience=patience), retries=policy
        )
        file_system = file_system_for("hdfs://any/x")
        assert isinstance(file_system, RetryingExclusiveFileSystem)
        return file_system

    yield register
    unregister_file_system("hdfs")


@pytest.fixture
def proxy(hdfs: HdfsServer) -> Iterator[NameNodeProxy]:
    with name_node_proxy(hdfs) as proxy:
        yield proxy
    for key in [key for key in CLIENTS.values if key[0] == proxy.uri]:
        CLIENTS.drop(key)


@pytest.fixture
def directory(proxy: NameNodeProxy, hdfs_directory: HdfsDirectory) -> str:
    """URI of `hdfs_directory` through the proxy."""
    return proxy.uri + hdfs_directory.path


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 1 MiB, the minimum of HDFS."""
    options = functools.partial(hdfs_native.WriteOptions, block_size=MIB)
    monkeypatch.setattr(hdfs_native, "WriteOptions", options)


def content(length: int) -> bytes:
    """Return bytes in which each kibibyte is different."""
    return b"".join(b"%1024d" % number for number in range(length // 1024 + 1))[:length]


@contextmanager
def in_background(action: Callable[[], object]) -> Iterator[None]:
    """Run the action in another thread, and wait for it after the block."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(action)
        yield
        done.result()


@contextmanager
def at_first_retry(action: Callable[[], object]) -> Iterator[None]:
    """Run the action in another thread as soon as a call has failed and will be repeated."""
    failed = threading.Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            failed.set()

    def wait_and_act() -> None:
        failed.wait()
        action()

    log = logging.getLogger("holdfast.locations.file_systems.retrying")
    handler = Handler()
    log.addHandler(handler)
    try:
        with in_background(wait_and_act):
            try:
                yield
                assert failed.is_set(), "nothing failed"
            finally:
                failed.set()
    finally:
        log.removeHandler(handler)


class Wrapping:
    """A client of hdfs-native with wrapped writers."""

    def __init__(self, raw: Any, wrap: Callable[[Any], Any]) -> None:
        self.raw = raw
        self.wrap = wrap
        self.inner = self

    def create(self, path: str, options: Any) -> Any:
        return self.wrap(self.raw.inner.create(path, options))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def stream_of(
    uri: str, *, wrap: Callable[[Any], Any] = lambda writer: writer, cleanup: Retrier | None = None
) -> HdfsOutputStream:
    """Return a file in progress, as `HdfsFileSystem` creates it.

    Args:
        uri: The file's URI.
        wrap: Wraps the writer of hdfs-native.
        cleanup: Retries the deletion of an aborted file.
    """
    writing = client_for(uri, (), HdfsPatience(), for_streams=True)
    return HdfsOutputStream(
        uri,
        uripath.local_path(uri),
        calls=client_for(uri, (), HdfsPatience()),
        stream=HdfsClient(Wrapping(writing.raw, wrap), lambda: None, writing.patience),
        retrier=Retrier(PATIENT),
        cleanup=cleanup or Retrier(PATIENT),
    )


class Ends:
    """A writer of hdfs-native with actions before and after it is closed."""

    def __init__(
        self,
        writer: Any,
        *,
        before: Callable[[], object] = lambda: None,
        after: Callable[[], object] = lambda: None,
    ) -> None:
        self.writer = writer
        self.before = before
        self.after = after

    def close(self) -> None:
        self.before()
        self.writer.close()
        self.after()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.writer, name)


def lose_answer() -> None:
    """Raise the error of hdfs-native for a lost answer."""
    raise OSError("RPC listener disconnected")


@dataclass(frozen=True)
class Lost:
    """A lost call of the NameNode, or a lost answer.

    Attributes:
        method: Name of the method.
        is_done: Whether the NameNode performs the call.
    """

    method: str
    is_done: bool

    def __str__(self) -> str:
        return f"{self.method} {'done' if self.is_done else 'not done'}"


def each_lost_call(*methods: str) -> pytest.MarkDecorator:
    """Parametrize a test with each lost call of these methods, and each lost answer."""
    values = [Lost(method, is_done) for method in methods for is_done in (False, True)]
    return pytest.mark.parametrize("call", values, ids=str)


Lengths = tuple[int, int]
"""Lengths of a file at the time of the fault, and of the complete file."""


def begin(
    directory: HdfsDirectory, file_system: HdfsFileSystem, data: bytes, lengths: list[Lengths]
) -> dict[Lengths, FileOutputStream]:
    """Begin files with the first bytes of the data."""
    streams = {}
    for before, after in lengths:
        stream = file_system.create(f"{directory.uri}/{before}-{after}")
        stream.write(data[:before])
        streams[before, after] = stream
    return streams


def end_all(streams: dict[Lengths, FileOutputStream], data: bytes) -> set[Lengths]:
    """Write the rest of all files at the same time; returns those that did not fail."""

    def ends(lengths: Lengths) -> bool:
        before, after = lengths
        try:
            streams[lengths].write(data[before:after])
            streams[lengths].commit()
        except StorageUnavailableError:
            return False
        return True

    with ThreadPoolExecutor(len(streams)) as pool:
        done = pool.map(ends, streams)
        return {lengths for lengths, is_done in zip(streams, done, strict=True) if is_done}


def check(directory: HdfsDirectory, data: bytes, ended: set[Lengths]) -> None:
    """Check that the files in `ended` are complete, and that there are no others."""
    assert set(directory.files()) == {f"{before}-{after}" for before, after in ended}
    for before, after in ended:
        assert directory.read(f"{before}-{after}") == data[:after]
