"""Copies of a query's files in a savepoint, except those that an earlier savepoint, its base, already has."""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from typing import BinaryIO, Literal, get_args

import msgspec

from holdfast.backends.keyed import write_canonical
from holdfast.common import map_in_parallel, read_exactly, uripath
from holdfast.errors import CheckpointCorruptedError, CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.coordination import copy_file, copy_files, copy_stream, read_claim
from holdfast.locations.file_systems import file_system_for
from holdfast.locations.handles import (
    FileStateHandle,
    SegmentsStateHandle,
    StreamStateHandle,
    files_of,
)
from holdfast.locations.metadata import CheckpointMetadata, StoredSubtask
from holdfast.locations.storages import (
    CheckpointStorageLocation,
    CompletedCheckpoint,
    load_checkpoint,
    resolve_pointer,
)
from holdfast.spark.checkpoint_location import is_immutable, opener, zip_parts
from holdfast.spark.savepoints.stored_query import use_stores
from holdfast.spark_progress import (
    SparkFile,
    all_streams,
    directories_of,
    progress_of,
    spark_files_of,
)

SavepointFormat = Literal["native", "canonical"]
"""The format of keyed state in a savepoint.

Source:
    Flink, SavepointFormatType.
"""

_COMPARED_BYTES = 1 << 20

_PARALLEL_SUBTASKS = 2
"""Each holds a chunk of rows in memory."""


@dataclass(frozen=True, slots=True)
class Base:
    """The files of an earlier savepoint: Spark's by path, those of state by the URI of the original."""

    files: Mapping[str, FileStateHandle] = field(default_factory=dict)
    state: Mapping[str, FileStateHandle] = field(default_factory=dict)

    @classmethod
    def load(
        cls, pointer: str | PathLike[str], query_id: str, configuration: dict[str, str]
    ) -> "Base":
        """Load the files of a savepoint of a query, without those that are missing or truncated.

        Raises:
            InvalidRequestError: The pointer leads to no savepoint, or to a savepoint of another query.
        """
        completed = load_checkpoint(resolve_pointer(pointer))
        spark_files = spark_files_of(completed.metadata, completed.location.external_pointer)
        _check_base(completed, query_id)
        directories = directories_of(completed)
        use_stores(configuration, *directories)  # it may refer to others in other buckets
        sizes = {
            entry.uri: entry.size
            for entries in map_in_parallel(
                lambda directory: list(file_system_for(directory).list(directory)), directories
            )
            for entry in entries
        }
        whole = {
            file.uri: file
            for file in files_of(all_streams(completed))
            if sizes.get(file.uri) == file.size
        }
        return cls(
            {
                file.path: file.handle
                for file in spark_files.files
                if isinstance(file.handle, FileStateHandle) and file.handle.uri in whole
            },
            {
                origin: whole[uri]
                for origin, uri in spark_files.state_origins.items()
                if uri in whole
            },
        )


def _check_base(base: CompletedCheckpoint, query_id: str) -> None:
    pointer = base.location.external_pointer
    claimant = read_claim(pointer)
    if claimant is not None:
        message = f"base was claimed by job {claimant.job_id!r}, which deletes it; pass another base, or none"
        raise InvalidRequestError(message, pointer, kind="not-claimable")
    owner = progress_of(base.metadata).query_id
    if owner != query_id:
        message = f"base is a savepoint of another query, {owner}; this is {query_id}"
        raise InvalidRequestError(message, pointer, kind="other-query")


class Copier:
    """Copies files into a savepoint, or refers to the same files of its base.

    Attributes:
        state_origins: URIs of the copies of Holdfast's state files, by the URI of the original.
        copied_bytes: Number of bytes copied so far.
    """

    def __init__(
        self, location: CheckpointStorageLocation, base: Base, format: SavepointFormat = "native"
    ) -> None:
        self._location = location
        self._base = base
        self._format = format
        self._lock = threading.Lock()
        self.state_origins: dict[str, str] = {}
        self.copied_bytes = 0

    def copy_files(self, root: str, sizes: Mapping[str, int]) -> list[SparkFile]:
        """Copy files of a checkpointLocation, given by path with their lengths in bytes."""
        return map_in_parallel(partial(self._copy_file, root), list(sizes.items()))

    def copy_zip_parts(self, root: str, copied: Iterable[SparkFile]) -> list[SparkFile]:
        """Copy the files that the ZIPs among the copied files refer to. Raises `CheckpointCorruptedError`."""
        zips = [file for file in copied if file.path.endswith(".zip")]
        parts = map_in_parallel(
            lambda file: zip_parts(file.path, file.handle.open_input_stream), zips
        )
        sizes = {path: size for zip_sizes in parts for path, size in zip_sizes.items()}
        files = self.copy_files(root, sizes)
        for file in files:
            if file.handle.size != sizes[file.path]:
                message = (
                    f"a state file has {file.handle.size} bytes, but {sizes[file.path]} in the "
                    "snapshot that it belongs to"
                )
                raise CheckpointCorruptedError(message, uripath.join(root, file.path))
        return files

    def copy_state(self, metadata: CheckpointMetadata) -> CheckpointMetadata:
        """Copy all state files, or write keyed state in the canonical format; return metadata that leads there."""
        rewritten: dict[str, FileStateHandle] = {}
        if self._format == "canonical":
            # The last batch saw no row that had expired by its time, and later batches won't, with any clock.
            batch_ms, _ = progress_of(metadata).times
            metadata = _write_canonical_state(metadata, self._location, batch_ms)
            rewritten = {file.uri: file for file in _keyed_state_files(metadata)}
            self.copied_bytes += sum(file.size for file in rewritten.values())

        def copy(file: FileStateHandle) -> StreamStateHandle:
            return rewritten.get(file.uri) or self._copy_state_file(file)

        metadata, copies = copy_files(metadata, copy)
        self.state_origins = {
            uri: copy.uri
            for uri, copy in copies.items()
            if isinstance(copy, FileStateHandle) and uri not in rewritten
        }
        return metadata

    def _copy_file(self, root: str, item: tuple[str, int]) -> SparkFile:
        path, size = item
        opens = opener(f"{root}/{path}")
        in_base = self._base.files.get(path)
        if (
            in_base is not None
            and in_base.size == size
            and (is_immutable(path) or _has_same_bytes(opens, in_base))
        ):
            return SparkFile(path, in_base)
        return SparkFile(path, self._count(copy_stream(opens, self._location)))

    def _copy_state_file(self, handle: FileStateHandle) -> StreamStateHandle:
        in_base = self._base.state.get(handle.uri)
        if in_base and (in_base.size, in_base.checksum) == (handle.size, handle.checksum):
            return in_base
        return self._count(copy_file(handle, self._location))

    def _count(self, copy: StreamStateHandle) -> StreamStateHandle:
        with self._lock:
            self.copied_bytes += copy.size
        return copy


def _has_same_bytes(opens: Callable[[], BinaryIO], in_base: FileStateHandle) -> bool:
    """Return whether a file has the bytes of the base's file of that length; False if the latter is corrupt."""
    with opens() as file:
        try:
            with in_base.open_input_stream() as copy:
                for start in range(0, in_base.size, _COMPARED_BYTES):
                    length = min(_COMPARED_BYTES, in_base.size - start)
                    if read_exactly(file, length) != read_exactly(copy, length):
                        return False
        except (EOFError, CheckpointNotFoundError, CheckpointCorruptedError):
            return False  # the file was truncated in the meantime, or the base's is corrupt
    return True


def check_format(format: str, *, has_base: bool) -> None:
    """Refuse an unknown format, or one that can't have a base. Raises `InvalidRequestError`."""
    if format not in get_args(SavepointFormat):
        raise InvalidRequestError(f"format must be 'native' or 'canonical', got {format!r}")
    if format == "canonical" and has_base:
        message = (
            "a canonical savepoint has no base, because all of its keyed state is rewritten; leave base out, or take a "
            "native savepoint"
        )
        raise InvalidRequestError(message)


def _write_canonical_state(
    metadata: CheckpointMetadata, location: CheckpointStorageLocation, now_ms: int
) -> CheckpointMetadata:
    """Write all managed keyed state in the canonical format, without rows that have expired by then."""

    def write(subtask: StoredSubtask) -> StoredSubtask:
        handles = (
            write_canonical(handle, location, now_ms=now_ms)
            if isinstance(handle, SegmentsStateHandle)
            else handle
            for handle in subtask.managed_keyed
        )
        return msgspec.structs.replace(subtask, managed_keyed=tuple(handles))

    subtasks = [
        subtask
        for operator in metadata.operators.values()
        for subtask in operator.subtasks.values()
    ]
    results = iter(map_in_parallel(write, subtasks, max_threads=_PARALLEL_SUBTASKS))
    operators = {
        uid: msgspec.structs.replace(
            operator, subtasks={index: next(results) for index in operator.subtasks}
        )
        for uid, operator in metadata.operators.items()
    }
    return msgspec.structs.replace(metadata, operators=operators)


def _keyed_state_files(metadata: CheckpointMetadata) -> list[FileStateHandle]:
    return files_of(
        stream
        for operator in metadata.operators.values()
        for subtask in operator.subtasks.values()
        for handle in subtask.managed_keyed
        if isinstance(handle, SegmentsStateHandle)
        for stream in handle.streams()
    )
