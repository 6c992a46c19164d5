"""The segments of a subtask: mapped local files, fetched from storage block by block when they are missing; small ones in memory."""

import logging
import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from holdfast.backends.keyed.segments.merging import Arena
from holdfast.backends.keyed.segments.partial_segment import (
    FetchPolicy,
    PartialSegment,
    prefetch,
)
from holdfast.backends.keyed.segments.segment import Segment
from holdfast.backends.keyed.segments.sparse_bytes import PARTIAL_SUFFIX
from holdfast.common import FULL_ERRNOS, map_in_parallel, replace_file
from holdfast.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    StorageFullError,
    StorageUnavailableError,
)
from holdfast.locations.checksums import Checksum
from holdfast.locations.file_systems import BytesLike
from holdfast.locations.handles import ByteStreamStateHandle, FileStateHandle, StreamStateHandle

_log = logging.getLogger(__name__)

IN_MEMORY_BYTES = 20 << 10
"""Segments up to this size are kept in memory, which costs less than a file."""

_MAX_OWNERS = 1024
"""Owners whose segments are tracked. A worker has few at a time, and more after a cluster has moved subtasks."""

_MAX_SEGMENTS = 4096
"""Open segments of a worker; the least recently used are closed first."""

_BUFFER_BYTES = 1 << 20

OpenSegment: TypeAlias = Segment | PartialSegment


class Workspace:
    """Open segments and memory for merging, which a worker keeps between batches for all its subtasks.

    It is used by one thread at a time. The blocks of a segment that is opened again by name stay verified.
    """

    def __init__(self) -> None:
        self.arena = Arena()
        self._segments: OrderedDict[str, OpenSegment] = OrderedDict()
        self._needed: OrderedDict[str, frozenset[str]] = OrderedDict()  # by owner

    def segment(self, name: str) -> OpenSegment | None:
        """Return an open segment; None if it is not open."""
        segment = self._segments.get(name)
        if segment is not None:
            self._segments.move_to_end(name)
        return segment

    def keep(self, segment: OpenSegment) -> None:
        self._segments[segment.name] = segment
        while len(self._segments) > _MAX_SEGMENTS:
            self.forget(next(iter(self._segments)))

    def forget(self, name: str) -> None:
        """Release a segment, if it is open."""
        segment = self._segments.pop(name, None)
        if segment is not None:
            segment.release()

    def keep_only(self, owner: str, names: frozenset[str]) -> None:
        """Release the segments that an owner, a subtask of an operator, was restored from before, and no longer can be.

        `forget_deleted` doesn't find small segments, since they have no file.
        """
        for name in self._needed.get(owner, frozenset()) - names:
            self.forget(name)
        self._needed[owner] = names
        self._needed.move_to_end(owner)
        if len(self._needed) > _MAX_OWNERS:
            self._needed.popitem(last=False)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the arena and of segments in memory; the system can evict the pages of mapped files."""
        return self.arena.size + sum(segment.size for segment in self._in_memory())

    def limit(self, max_bytes: int) -> None:
        """Reduce the memory to at most `max_bytes`: release the arena if it is larger, then the oldest segments."""
        if self.arena.size > max_bytes:
            self.arena.release()
        excess = self.memory_bytes - max_bytes
        for segment in self._in_memory():
            if excess <= 0:
                return
            excess -= segment.size
            self.forget(segment.name)

    def _in_memory(self) -> list[OpenSegment]:
        """Return the segments without a file, oldest first."""
        return [each for each in self._segments.values() if not os.path.isabs(each.location)]

    def forget_deleted(self) -> None:
        """Release segments whose files were deleted: while they are mapped they occupy the disk."""
        for segment in list(self._segments.values()):
            if os.path.isabs(segment.location) and not os.path.exists(segment.location):
                self.forget(segment.name)


class SegmentStore:
    """Segments by name: stored ones, `streams`, and new ones. Without a directory of local files they are in memory.

    `tails` has the lengths of the tails of stored ones.

    A stored segment without a complete local file is a `PartialSegment`, which fetches what is read of it. A local file
    that is corrupt, truncated or missing is fetched again, also during a lookup: only corruption in storage is an
    error. Whenever a segment is requested its file is checked for changes. A file that is truncated while an array of it
    is being read kills the process, which can't be prevented.
    """

    def __init__(
        self,
        directory: str | None,
        workspace: Workspace,
        streams: Mapping[str, StreamStateHandle],
        tails: Mapping[str, int],
        policy: FetchPolicy,
    ) -> None:
        self._policy = policy
        self._tails = tails
        self._directory = directory
        self._workspace = workspace
        self._streams = dict(streams)
        self._segments: dict[str, OpenSegment] = {}

    @property
    def names(self) -> set[str]:
        """The names of all segments that are open or can be fetched."""
        return self._segments.keys() | self._streams.keys()

    def files(self, names: Iterable[str]) -> dict[str, FileStateHandle]:
        """Return the stored files of segments, of those that have one."""
        streams = {name: self._streams.get(name) for name in names}
        return {name: file for name, file in streams.items() if isinstance(file, FileStateHandle)}

    def open_segments(self, names: Iterable[str]) -> dict[str, OpenSegment]:
        """Return the segments that are open, of those with these names."""
        return {name: self._segments[name] for name in names if name in self._segments}

    def fetch_from(self, streams: Mapping[str, StreamStateHandle]) -> None:
        """Fetch stored segments from these streams from now on, which have copies of them."""
        for name, stream in streams.items():
            if name in self._streams:
                self._streams[name] = stream
                segment = self._segments.get(name)
                if isinstance(segment, PartialSegment) and isinstance(stream, FileStateHandle):
                    segment.fetch_from(stream)

    def segment(self, name: str) -> OpenSegment:
        """Return a segment.

        Raises:
            CheckpointNotFoundError: The segment is gone.
            CheckpointCorruptedError: The segment is corrupt.
            StorageUnavailableError: The segment can't be fetched.
        """
        segment = self._segments.get(name)
        if segment is not None and not segment.is_changed():
            return segment
        segment = self._workspace.segment(name)
        if segment is not None and segment.is_changed():
            self._workspace.forget(name)
            segment = None
        if segment is None:
            segment = self._open(name)
            self._keep(segment)
        stream = self._stored_file(name)
        if stream is not None and isinstance(segment, PartialSegment):
            segment.fetch_from(stream)  # it may have been opened from the file of another job
        elif stream is not None and isinstance(segment, Segment) and self._directory is not None:
            segment.fetch_if_corrupt(partial(self._fetch_again, name, stream))
        self._segments[name] = segment
        return segment

    def has_all(self, names: Iterable[str]) -> bool:
        """Return whether all segments are complete on this host."""
        return not any(map(self._is_partial, names))

    def open_all(self, names: Iterable[str]) -> list[OpenSegment]:
        """Return segments; open those that are not on this host in one round of requests. Raises as `segment`."""
        names = list(names)
        closed = [
            (name, stream)
            for name in names
            if self._is_closed(name) and (stream := self._stored_file(name)) is not None
        ]
        if not closed:
            return [self.segment(name) for name in names]
        max_threads = self._policy.threads(stream.uri for _, stream in closed)
        for segment in map_in_parallel(
            lambda each: self._open_stored(*each), closed, max_threads=max_threads
        ):
            self._segments[segment.name] = segment
            self._keep(segment)
        return [self.segment(name) for name in names]

    def fetch_sections(self, sections: Iterable[tuple[str, int]]) -> None:
        """Fetch what is missing of sections in one round of requests, after opening their segments.

        A section is given by the name of its segment and its number in it. Raises as `segment`.
        """
        missing = [(name, number) for name, number in sections if self._is_partial(name)]
        opened = {each.name: each for each in self.open_all({name: None for name, _ in missing})}
        prefetch(
            (segment, segment.section_blocks(number))
            for name, number in missing
            if isinstance(segment := opened[name], PartialSegment)
        )

    def add(self, name: str, buffers: Sequence[BytesLike], checksum: Checksum) -> None:
        """Add a new segment with this checksum; in memory if the disk is full or fails."""
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        if size <= IN_MEMORY_BYTES or not self._write_copy(name, buffers):
            segment = Segment.from_bytes(b"".join(buffers), name)
            if size <= IN_MEMORY_BYTES:
                self._workspace.keep(segment)
        else:
            segment = Segment.open(self._path(name), name, checksum)
            self._workspace.keep(segment)
        self._segments[name] = segment

    def discard(self, names: Iterable[str]) -> None:
        """Release segments, and delete their local files."""
        for name in names:
            self._segments.pop(name, None)
            self._streams.pop(name, None)
            self._workspace.forget(name)
            if self._directory is not None:
                for path in (self._path(name), self._path(name) + PARTIAL_SUFFIX):
                    with suppress(OSError):
                        os.unlink(path)

    def close(self) -> None:
        """Release all segments. Local files remain."""
        self._segments = {}

    def _open(self, name: str) -> OpenSegment:
        stream = self._streams.get(name)
        if isinstance(stream, ByteStreamStateHandle):
            return Segment.from_bytes(stream.data, name)
        if isinstance(stream, FileStateHandle):
            return self._open_stored(name, stream)
        if name in self._segments:  # written here, and only in this file
            return Segment.open(self._path(name), name)
        raise CheckpointNotFoundError(f"segment {name} is gone")

    def _open_stored(self, name: str, stream: FileStateHandle) -> OpenSegment:
        """Open the local copy of a stored segment; the trailer is fetched if there is no complete copy."""
        if self._directory is not None:
            try:
                return Segment.open(self._path(name), name)
            except CheckpointNotFoundError:
                pass
            except CheckpointCorruptedError as error:
                return self._fetch_again(name, stream, str(error))
        segment = self._partial(name, stream)
        return segment.complete() if segment.is_complete else segment

    def _fetch_again(self, name: str, stream: FileStateHandle, corruption: str) -> Segment:
        """Delete the corrupt file, so that no other task maps it, and fetch the segment."""
        _log.warning(
            "the local copy of segment %s is corrupt, fetching it again: %s", name, corruption
        )
        with suppress(OSError):
            os.unlink(self._path(name))
        return self._partial(name, stream).complete()

    def _partial(self, name: str, stream: FileStateHandle) -> PartialSegment:
        path = self._path(name) if self._directory is not None else None
        return PartialSegment(name, stream, self._tails[name], path, self._policy)

    def _keep(self, segment: OpenSegment) -> None:
        """Keep a segment open for later tasks, unless all of it would stay in memory."""
        is_mapped = os.path.isabs(segment.location)
        if is_mapped or isinstance(self._streams.get(segment.name), ByteStreamStateHandle):
            self._workspace.keep(segment)

    def _stored_file(self, name: str) -> FileStateHandle | None:
        stream = self._streams.get(name)
        return stream if isinstance(stream, FileStateHandle) else None

    def _is_closed(self, name: str) -> bool:
        segment = self._segments.get(name) or self._workspace.segment(name)
        return segment is None or segment.is_changed()

    def _is_partial(self, name: str) -> bool:
        segment = self._segments.get(name) or self._workspace.segment(name)
        if segment is not None:
            return isinstance(segment, PartialSegment)
        if self._stored_file(name) is None:
            return False
        return self._directory is None or not os.path.exists(self._path(name))

    def _write_copy(self, name: str, buffers: Sequence[BytesLike]) -> bool:
        """Write the local file of a new segment; return whether there is one."""
        if self._directory is None:
            return False
        try:
            _write_file(self._path(name), buffers)
        except (StorageFullError, StorageUnavailableError) as error:
            _log.warning("the new segment is kept in memory, without a local copy: %s", error)
            return False
        return True

    def _path(self, name: str) -> str:
        assert self._directory is not None
        return os.path.join(self._directory, name)


def _write_file(path: str, buffers: Iterable[BytesLike]) -> None:
    """Write a file atomically. It is not synced, since storage has the bytes.

    Raises `StorageFullError` or `StorageUnavailableError`, and errors of the iterable.
    """
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with (
            replace_file(path) as temporary,
            open(temporary, "wb", _BUFFER_BYTES, opener=partial(os.open, mode=0o600)) as file,
        ):
            file.writelines(buffers)
    except OSError as error:
        error_class = StorageFullError if error.errno in FULL_ERRNOS else StorageUnavailableError
        raise error_class(f"segment can't be written ({error.strerror})", path) from error
