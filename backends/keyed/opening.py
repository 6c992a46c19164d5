"""Tables of a backend by its name, and handles of any backend in the form that all read. RocksDB is loaded when it is needed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, get_args

from holdfast.backends.keyed.columnar import ColumnarStateTables, Workspace
from holdfast.backends.keyed.heap import HeapStateTables
from holdfast.backends.keyed.rocksdb_settings import RocksDBSettings
from holdfast.backends.keyed.segments import ROCKSDB, read_manifest, write_canonical_tables
from holdfast.backends.keyed.table import StateTables
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import SnapshotStreams
from holdfast.errors import InvalidRequestError, UnsupportedFormatError
from holdfast.locations.handles import SegmentsStateHandle
from holdfast.locations.storages import CheckpointStreamFactory

BackendName = Literal["columnar", "heap", "rocksdb"]
"""Backends of keyed state."""

BACKEND_NAMES: tuple[BackendName, ...] = get_args(BackendName)


def open_tables(
    key_groups: KeyGroupRange,
    handles: Sequence[SegmentsStateHandle] = (),
    *,
    backend: BackendName = "columnar",
    directory: str | None = None,
    workspace: Workspace | None = None,
    may_refer: bool = True,
    rocksdb: RocksDBSettings | None = None,
    on_metrics: Callable[[Mapping[str, int]], None] | None = None,
) -> StateTables:
    """The tables of a subtask.

    Args:
        key_groups: The key groups of the subtask.
        handles: The stored state, whichever backend wrote it; no two handles have rows of one key group.
        backend: Which backend.
        directory: A directory for local copies of shared files; None keeps none.
        workspace: Files and memory that a columnar backend keeps open from one batch to the next.
        may_refer: Whether checkpoints may refer to the files that were restored.
        rocksdb: How RocksDB uses memory, files and threads.
        on_metrics: Is told with each snapshot what RocksDB says of itself, if its settings ask for it.

    Raises:
        InvalidRequestError: RocksDB is not installed.
        CheckpointNotFoundError: A file is gone.
        CheckpointCorruptedError: Stored bytes are damaged.
        UnsupportedFormatError: A newer Holdfast wrote it.
    """
    if backend == "rocksdb":
        with _rocksdict():
            from holdfast.backends.keyed.rocksdb import (  # noqa: PLC0415  # an extra
                RocksDBStateTables,
            )
        return RocksDBStateTables(
            key_groups,
            handles,
            directory=directory,
            settings=rocksdb,
            may_refer=may_refer,
            on_metrics=on_metrics,
        )
    try:
        return _opened(key_groups, handles, backend, directory, workspace, may_refer=may_refer)
    except UnsupportedFormatError as error:
        if error.kind != ROCKSDB:
            raise
    readable = readable_handles(handles, directory)
    # What was written anew is in no checkpoint.
    return _opened(key_groups, readable, backend, directory, workspace, may_refer=False)


def _opened(
    key_groups: KeyGroupRange,
    handles: Sequence[SegmentsStateHandle],
    backend: BackendName,
    directory: str | None,
    workspace: Workspace | None,
    *,
    may_refer: bool,
) -> StateTables:
    """Tables whose handles are in segments."""
    if backend == "heap":
        return HeapStateTables(key_groups, handles)
    return ColumnarStateTables(
        key_groups, handles, directory=directory, workspace=workspace, may_refer=may_refer
    )


def readable_handles(
    handles: Sequence[SegmentsStateHandle], directory: str | None = None
) -> list[SegmentsStateHandle]:
    """Handles to the same rows, in segments: what is in RocksDB's files is written anew, into files if it is large.

    Args:
        handles: Lead to the rows.
        directory: Where these files are until nobody has their handle; None takes a temporary directory. They are of no
            use on other hosts.

    Raises:
        InvalidRequestError: RocksDB is not installed, and there is such a handle.
        CheckpointNotFoundError: A file is gone.
        CheckpointCorruptedError: Stored bytes are damaged.
        UnsupportedFormatError: A newer Holdfast wrote it.
    """
    readable: list[SegmentsStateHandle] = []
    for handle in handles:
        try:
            read_manifest([handle], KeyGroupRange(*handle.key_groups))
        except UnsupportedFormatError as error:
            if error.kind != ROCKSDB:
                raise
            with _rocksdict():
                from holdfast.backends.keyed.rocksdb import canonical_handles  # noqa: PLC0415
            readable += canonical_handles([handle], directory)
        else:
            readable.append(handle)
    return readable


def write_canonical(
    handle: SegmentsStateHandle, factory: CheckpointStreamFactory, *, now_ms: int
) -> SegmentsStateHandle:
    """Write the rows of a handle in the canonical form, which all backends read, without having all of them in memory.

    Each table becomes one run of a single segment: without rows that were changed or deleted since, whose time is
    over, or of other key groups. Only where a state's type has changed, and rows in the old form are left, these are a run
    of their own, as the job alone can make them what they are to be.

    Args:
        handle: Leads to the rows, whichever backend wrote them. Rows in RocksDB's files are read from
            copies of these in a temporary directory.
        factory: Where the segment and its manifest go.
        now_ms: The time by which rows expire, milliseconds.

    Raises:
        InvalidRequestError: RocksDB is not installed, and the rows are in its files.
        CheckpointNotFoundError: A file is gone.
        CheckpointCorruptedError: What was read is not what was written.
        UnsupportedFormatError: A newer Holdfast wrote it.
        StorageUnavailableError: The store did not take it, or this host's disk has no room.
    """
    streams = SnapshotStreams(factory)
    try:
        return write_canonical_tables(handle, streams, now_ms=now_ms)
    except UnsupportedFormatError as error:
        if error.kind != ROCKSDB:
            raise
    with _rocksdict():
        from holdfast.backends.keyed.rocksdb import write_canonical_rows  # noqa: PLC0415
    return write_canonical_rows(handle, streams, now_ms=now_ms)


@contextmanager
def _rocksdict() -> Iterator[None]:
    """Say what to install if it lacks."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "rocksdict":
            raise
        message = "keyed state in RocksDB needs rocksdict: pip install 'holdfast[rocksdb]'"
        raise InvalidRequestError(message) from error
