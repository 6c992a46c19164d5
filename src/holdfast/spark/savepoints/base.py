"""Copy into a savepoint what an earlier one doesn't have already."""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from typing import BinaryIO

from holdfast.common import in_parallel, read_exactly, uripath
from holdfast.errors import CheckpointCorruptedError, CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.coordination import files_of, stored, with_copies
from holdfast.locations.file_systems import file_system_for
from holdfast.locations.handles import FileStateHandle, StreamStateHandle
from holdfast.locations.metadata import CheckpointMetadata
from holdfast.locations.storages import CheckpointStorageLocation, load_checkpoint, resolve_pointer
from holdfast.spark.checkpoint_location import is_unique, opened, parts_of
from holdfast.spark.savepoints.origin import use_stores
from holdfast.spark_progress import (
    SparkFile,
    all_streams,
    directories_of,
    progress_of,
    spark_files_of,
)

_COMPARED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Base:
    """What an earlier savepoint has in files.

    Attributes:
        files: Spark's, by path.
        state: Files of Holdfast's state, by the URI that they were copied from.
    """

    files: Mapping[str, FileStateHandle] = field(default_factory=dict)
    state: Mapping[str, FileStateHandle] = field(default_factory=dict)

    @classmethod
    def load(
        cls, pointer: str | PathLike[str], query_id: str, configuration: dict[str, str]
    ) -> "Base":
        """That of a savepoint, without what is gone or cut: a copy of that is made anew.

        Args:
            pointer: The savepoint.
            query_id: The query that it has to be of.
            configuration: How Spark reaches its stores.

        Raises:
            InvalidRequestError: It is no savepoint, or one of another query.
        """
        completed = load_checkpoint(resolve_pointer(pointer))
        directory = completed.location.external_pointer
        spark_files = spark_files_of(completed.metadata, directory)
        owner = progress_of(completed.metadata).query_id
        if owner != query_id:
            message = f"base is a savepoint of another query, {owner}; this is {query_id}"
            raise InvalidRequestError(message, directory)
        files = files_of(all_streams(completed))
        directories = directories_of(completed)
        use_stores(configuration, *directories)  # it may refer to others in other buckets
        there = {
            entry.uri: entry.size
            for entries in in_parallel(
                lambda one: list(file_system_for(one).list(one)), directories
            )
            for entry in entries
        }
        by_uri = {one.uri: one for one in files if there.get(one.uri) == one.size}
        return cls(
            {
                one.path: one.handle
                for one in spark_files.files
                if isinstance(one.handle, FileStateHandle) and one.handle.uri in by_uri
            },
            {
                origin: by_uri[uri]
                for origin, uri in spark_files.state_origins.items()
                if uri in by_uri
            },
        )


class Copier:
    """Copies into one savepoint.

    Args:
        location: The savepoint that is being made.
        base: What is referred to instead of being copied.

    Attributes:
        state_origins: Where the files of Holdfast's state have got to, by where they were.
        copied_bytes: Bytes that were copied so far.
    """

    def __init__(self, location: CheckpointStorageLocation, base: Base) -> None:
        self._location = location
        self._base = base
        self._lock = threading.Lock()
        self.state_origins: dict[str, str] = {}
        self.copied_bytes = 0

    def files(self, root: str, sizes: Mapping[str, int]) -> list[SparkFile]:
        """Copy files of a checkpointLocation, given by path with their lengths in bytes."""
        return in_parallel(partial(self._file, root), list(sizes.items()))

    def parts_of_zips(self, root: str, copied: Iterable[SparkFile]) -> list[SparkFile]:
        """Copy what those of the copied files that are zips refer to.

        Raises:
            CheckpointCorruptedError: Something has another length than the zip says.
        """
        zips = [one for one in copied if one.path.endswith(".zip")]
        found = in_parallel(lambda one: parts_of(one.path, one.handle.open_input_stream), zips)
        sizes = {path: size for parts in found for path, size in parts.items()}
        files = self.files(root, sizes)
        for one in files:
            if one.handle.size != sizes[one.path]:
                message = (
                    f"a file of the state has {one.handle.size} bytes, but {sizes[one.path]} by the "
                    "snapshot that it belongs to"
                )
                raise CheckpointCorruptedError(message, uripath.join(root, one.path))
        return files

    def state(self, metadata: CheckpointMetadata) -> CheckpointMetadata:
        """The same with copies of all files of state."""
        metadata, copied = with_copies(metadata, self._state_file)
        self.state_origins = {
            uri: one.uri for uri, one in copied.items() if isinstance(one, FileStateHandle)
        }
        return metadata

    def _file(self, root: str, item: tuple[str, int]) -> SparkFile:
        path, size = item
        opens = opened(f"{root}/{path}")
        known = self._base.files.get(path)
        if known is not None and known.size == size and (is_unique(path) or _equal(opens, known)):
            return SparkFile(path, known)
        return SparkFile(path, self._copied(opens))

    def _state_file(self, handle: FileStateHandle) -> StreamStateHandle:
        known = self._base.state.get(handle.uri)
        if known is not None and (known.size, known.checksum) == (handle.size, handle.checksum):
            return known
        return self._copied(handle.open_input_stream)

    def _copied(self, opens: Callable[[], BinaryIO]) -> StreamStateHandle:
        handle = stored(opens, self._location)
        with self._lock:
            self.copied_bytes += handle.size
        return handle


def _equal(opens: Callable[[], BinaryIO], known: FileStateHandle) -> bool:
    """Whether a file of the same length has the same bytes, and the known one is whole."""
    with opens() as ours:
        return _has_bytes_of(known, ours)


def _has_bytes_of(known: FileStateHandle, ours: BinaryIO) -> bool:
    try:
        with known.open_input_stream() as theirs:
            for start in range(0, known.size, _COMPARED_BYTES):
                length = min(_COMPARED_BYTES, known.size - start)
                if read_exactly(ours, length) != read_exactly(theirs, length):
                    return False
    except (EOFError, CheckpointNotFoundError, CheckpointCorruptedError):
        return False  # ours has become shorter meanwhile, or theirs is damaged
    return True
