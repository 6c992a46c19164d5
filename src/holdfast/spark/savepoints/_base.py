"""Copy into a savepoint what an earlier one doesn't have already."""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from typing import BinaryIO

from holdfast.errors import InvalidRequestError
from holdfast.locations import (
    CheckpointMetadata,
    CheckpointStorageLocation,
    FileStateHandle,
    StreamStateHandle,
    load_checkpoint,
    read_exactly,
    resolve_pointer,
    with_streams,
)
from holdfast.spark._coordinator import progress_of
from holdfast.spark.savepoints._content import SparkFile, spark_files_of
from holdfast.spark.savepoints._files import in_parallel, opened, stored
from holdfast.spark.savepoints._selection import is_unique
from holdfast.spark.savepoints._zips import parts_of

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
    def load(cls, pointer: str | PathLike[str], query_id: str) -> "Base":
        """That of a savepoint.

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
        by_uri = {
            one.uri: one for one in completed.metadata.streams() if isinstance(one, FileStateHandle)
        }
        return cls(
            {
                one.path: one.handle
                for one in spark_files.files
                if isinstance(one.handle, FileStateHandle)
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

    def parts_of_zips(self, copied: Iterable[SparkFile]) -> dict[str, int]:
        """Paths and lengths of what those of the copied files that are zips refer to."""
        zips = [one for one in copied if one.path.endswith(".zip")]
        found = in_parallel(lambda one: parts_of(one.path, one.handle.open_input_stream), zips)
        return {path: size for parts in found for path, size in parts.items()}

    def state(self, metadata: CheckpointMetadata) -> CheckpointMetadata:
        """The same with copies of all files of state."""
        files = {one.uri: one for one in metadata.streams() if isinstance(one, FileStateHandle)}
        copied = in_parallel(self._state_file, list(files.values()))
        by_uri = dict(zip(files, copied, strict=True))
        self.state_origins = {
            uri: one.uri for uri, one in by_uri.items() if isinstance(one, FileStateHandle)
        }

        def change(handle: StreamStateHandle) -> StreamStateHandle:
            return by_uri[handle.uri] if isinstance(handle, FileStateHandle) else handle

        return with_streams(metadata, change)

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
    """Whether a file of the same length has the same bytes."""
    with opens() as ours, known.open_input_stream() as theirs:
        for start in range(0, known.size, _COMPARED_BYTES):
            length = min(_COMPARED_BYTES, known.size - start)
            try:
                if read_exactly(ours, length) != read_exactly(theirs, length):
                    return False
            except EOFError:  # it has become shorter meanwhile
                return False
    return True
