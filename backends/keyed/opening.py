"""Backends of keyed state by name, and conversion of handles to segments. RocksDB is imported on demand."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Literal, get_args

from holdfast.backends.keyed.heap import HeapStateTables
from holdfast.backends.keyed.rocksdb_settings import RocksDBSettings
from holdfast.backends.keyed.segments import (
    ColumnarStateTables,
    RocksDBManifestError,
    Workspace,
    read_manifest,
    write_canonical_tables,
)
from holdfast.backends.keyed.table import StateTables
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import SnapshotStreams
from holdfast.errors import InvalidRequestError
from holdfast.locations.handles import SegmentsStateHandle
from holdfast.locations.storages import CheckpointStreamFactory

BackendName = Literal["columnar", "heap", "rocksdb"]
"""Names of the backends of keyed state."""

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
    """Open the tables of a subtask, new or restored.

    Args:
        key_groups: The key groups of the subtask.
        handles: The stored state, written by any backend; the handles' key groups must not overlap.
        backend: The backend's name.
        directory: A directory for local copies of shared files; None keeps no copies.
        workspace: Files and memory that a columnar backend keeps open between batches.
        may_refer: Whether checkpoints may refer to the restored files.
        rocksdb: The RocksDB settings.
        on_metrics: Called with RocksDB's metrics at each snapshot, if its settings enable them.

    Raises:
        InvalidRequestError: RocksDB is not installed.
        CheckpointNotFoundError: A file is missing.
        CheckpointCorruptedError: Stored bytes are corrupted.
        UnsupportedFormatError: The state was written by a newer Holdfast.
    """
    if backend == "rocksdb":
        with _rocksdict():
            from holdfast.backends.keyed.rocksdb_tables import (  # noqa: PLC0415  # an extra
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

    def open_segments(handles: Sequence[SegmentsStateHandle], *, may_refer: bool) -> StateTables:
        if backend == "heap":
            return HeapStateTables(key_groups, handles)
        return ColumnarStateTables(
            key_groups, handles, directory=directory, workspace=workspace, may_refer=may_refer
        )

    with suppress(RocksDBManifestError):
        return open_segments(handles, may_refer=may_refer)
    # Converted files are not part of any checkpoint.
    return open_segments(readable_handles(handles, directory), may_refer=False)


def readable_handles(
    handles: Sequence[SegmentsStateHandle], directory: str | None = None
) -> list[SegmentsStateHandle]:
    """Return handles to the same rows in segments; rows in RocksDB's files are converted. Raises as `open_tables`.

    Large converted segments are in the directory, or else in a temporary one, and are deleted with their handles.
    Other hosts can't read them.
    """
    readable: list[SegmentsStateHandle] = []
    for handle in handles:
        try:
            read_manifest([handle], KeyGroupRange(*handle.key_groups))
        except RocksDBManifestError:
            with _rocksdict():
                from holdfast.backends.keyed.rocksdb_tables import canonical_handles  # noqa: PLC0415  # RocksDB is optional
            readable += canonical_handles([handle], directory)
        else:
            readable.append(handle)
    return readable


def write_canonical(
    handle: SegmentsStateHandle, factory: CheckpointStreamFactory, *, now_ms: int
) -> SegmentsStateHandle:
    """Write the rows of a handle in the canonical form, which all backends read, in bounded memory.

    Each table becomes one run, without overwritten, deleted and expired rows and those of other
    key groups. Rows with an older type of the state become a separate run, because only the job can migrate them.

    RocksDB's files are copied to a temporary directory. `now_ms` is the present, which decides which rows have expired.
    Raises as `open_tables`, and `StorageUnavailableError` if the store rejects the write, or this host's disk is full.
    """
    streams = SnapshotStreams(factory)
    with suppress(RocksDBManifestError):
        return write_canonical_tables(handle, streams, now_ms=now_ms)
    with _rocksdict():
        from holdfast.backends.keyed.rocksdb_tables import write_canonical_rows  # noqa: PLC0415  # RocksDB is optional
    return write_canonical_rows(handle, streams, now_ms=now_ms)


@contextmanager
def _rocksdict() -> Iterator[None]:
    """Report how to install RocksDB if it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "rocksdict":
            raise
        message = "keyed state in RocksDB needs rocksdict: pip install 'holdfast[rocksdb]'"
        raise InvalidRequestError(message, kind="missing-package") from error
