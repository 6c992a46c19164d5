"""Copy into a savepoint what an earlier savepoint, its base, doesn't have already."""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from typing import BinaryIO

from holdfast.common import map_in_parallel, read_exactly, uripath
from holdfast.errors import CheckpointCorruptedError, CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.coordination import claimant_of, files_of, stored, with_copies
from holdfast.locations.file_systems import file_system_for
from holdfast.locations.handles import FileStateHandle, StreamStateHandle
from holdfast.locations.metadata import CheckpointMetadata
from holdfast.locations.storages import CheckpointStorageLocation, load_checkpoint, resolve_pointer
from holdfast.spark.checkpoint_location import is_immutable, opener, zip_parts
from holdfast.spark.savepoints.configuration import use_stores
from holdfast.spark.savepoints.take.canonical_state import SavepointFormat, with_canonical_state
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
    """Files that an earlier savepoint has.

    Attributes:
        files: Spark's files, by path.
        state: Files of Holdfast's state, by the URI that they were copied from.
    """

    files: Mapping[str, FileStateHandle] = field(default_factory=dict)
    state: Mapping[str, FileStateHandle] = field(default_factory=dict)

    @classmethod
    def load(
        cls, pointer: str | PathLike[str], query_id: str, configuration: dict[str, str]
    ) -> "Base":
        """The files of a savepoint; those that are gone or cut don't count, and are copied anew.

        Args:
            pointer: The savepoint.
            query_id: Spark's id of the query that the savepoint must be of.
            configuration: Spark's configuration, which says how the stores are reached.

        Raises:
            InvalidRequestError: The pointer leads to no savepoint, or to a savepoint of another query.
        """
        completed = load_checkpoint(resolve_pointer(pointer))
        pointer = completed.location.external_pointer
        spark_files = spark_files_of(completed.metadata, pointer)
        holder = claimant_of(pointer)
        if holder is not None:
            message = f"base was claimed by job {holder.job_id!r}, which deletes it; name another one, or none"
            raise InvalidRequestError(message, pointer)
        owner = progress_of(completed.metadata).query_id
        if owner != query_id:
            message = f"base is a savepoint of another query, {owner}; this is {query_id}"
            raise InvalidRequestError(message, pointer)
        files = files_of(all_streams(completed))
        directories = directories_of(completed)
        use_stores(configuration, *directories)  # it may refer to others in other buckets
        there = {
            entry.uri: entry.size
            for entries in map_in_parallel(
                lambda directory: list(file_system_for(directory).list(directory)), directories
            )
            for entry in entries
        }
        by_uri = {file.uri: file for file in files if there.get(file.uri) == file.size}
        return cls(
            {
                file.path: file.handle
                for file in spark_files.files
                if isinstance(file.handle, FileStateHandle) and file.handle.uri in by_uri
            },
            {
                origin: by_uri[uri]
                for origin, uri in spark_files.state_origins.items()
                if uri in by_uri
            },
        )


class Copier:
    """Copies files into a savepoint.

    Args:
        location: The savepoint that is being made.
        base: What is referred to instead of being copied.
        format: How keyed state is written.

    Attributes:
        state_origins: Where the files of Holdfast's state have got to, by where they were.
        copied_bytes: Bytes that were copied so far.
    """

    def __init__(
        self,
        location: CheckpointStorageLocation,
        base: Base,
        format: SavepointFormat = "native",
    ) -> None:
        self._location = location
        self._base = base
        self._format = format
        self._lock = threading.Lock()
        self.state_origins: dict[str, str] = {}
        self.copied_bytes = 0

    def files(self, root: str, sizes: Mapping[str, int]) -> list[SparkFile]:
        """Copy files of a checkpointLocation, given by path with their lengths in bytes."""
        return map_in_parallel(partial(self._file, root), list(sizes.items()))

    def parts_of_zips(self, root: str, copied: Iterable[SparkFile]) -> list[SparkFile]:
        """Copy the files that zips among the copied files refer to.

        Raises:
            CheckpointCorruptedError: A file has another length than the zip says.
        """
        zips = [file for file in copied if file.path.endswith(".zip")]
        parts = map_in_parallel(
            lambda file: zip_parts(file.path, file.handle.open_input_stream), zips
        )
        sizes = {path: size for of_zip in parts for path, size in of_zip.items()}
        files = self.files(root, sizes)
        for file in files:
            if file.handle.size != sizes[file.path]:
                message = (
                    f"a file of the state has {file.handle.size} bytes, but {sizes[file.path]} by the "
                    "snapshot that it belongs to"
                )
                raise CheckpointCorruptedError(message, uripath.join(root, file.path))
        return files

    def state(self, metadata: CheckpointMetadata) -> CheckpointMetadata:
        """The metadata with copies of all files of state, or with keyed state that was written anew."""
        written: dict[str, FileStateHandle] = {}
        if self._format == "canonical":
            # The last batch has seen no row whose time was over then, and later ones won't, by whichever clock.
            batch_ms, _ = progress_of(metadata).times
            metadata, written = with_canonical_state(metadata, self._location, batch_ms)
            self.copied_bytes += sum(file.size for file in written.values())

        def copy(file: FileStateHandle) -> StreamStateHandle:
            return written.get(file.uri) or self._state_file(file)

        metadata, copied = with_copies(metadata, copy)
        self.state_origins = {
            uri: copy.uri
            for uri, copy in copied.items()
            if isinstance(copy, FileStateHandle) and uri not in written
        }
        return metadata

    def _file(self, root: str, item: tuple[str, int]) -> SparkFile:
        path, size = item
        opens = opener(f"{root}/{path}")
        known = self._base.files.get(path)
        if (
            known is not None
            and known.size == size
            and (is_immutable(path) or _equal(opens, known))
        ):
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
    """Whether a file has the same bytes as the base's file of that length; False if that is damaged."""
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
        return False  # our file has become shorter meanwhile, or the base's is damaged
    return True
