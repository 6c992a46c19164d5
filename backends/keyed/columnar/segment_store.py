"""The segments of a subtask: local files that are mapped, fetched when they are not there; small ones in memory."""

import errno
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from holdfast.backends.keyed.columnar.workspace import Workspace
from holdfast.backends.keyed.segments import Segment, load_segment
from holdfast.errors import (
    CheckpointCorruptedError,
    CheckpointError,
    CheckpointNotFoundError,
    StorageFullError,
    StorageUnavailableError,
)
from holdfast.locations.file_systems import BytesLike
from holdfast.locations.handles import ByteStreamStateHandle, ChecksumBuilder, StreamStateHandle

_log = logging.getLogger(__name__)

IN_MEMORY_BYTES = 20 << 10
"""Segments of at most so many bytes are kept in memory: a file is not worth its while."""

_READ_BYTES = 1 << 20
_MOST_BUFFERS = 512
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class SegmentStore:
    """Segments by name.

    Args:
        directory: Where local files are; None keeps all segments in memory.
        workspace: Keeps segments open for the stores that come after this.
        streams: Where segments are fetched from.
    """

    def __init__(
        self,
        directory: str | None,
        workspace: Workspace,
        streams: Mapping[str, StreamStateHandle],
    ) -> None:
        self._directory = directory
        self._workspace = workspace
        self._streams = dict(streams)
        self._segments: dict[str, Segment] = {}

    @property
    def names(self) -> set[str]:
        """The names of all segments that there are or that can be fetched."""
        return self._segments.keys() | self._streams.keys()

    def segment(self, name: str) -> Segment:
        """A segment by its name.

        Raises:
            CheckpointNotFoundError: It is gone.
            CheckpointCorruptedError: It is not what was written.
            StorageUnavailableError: It can't be fetched.
        """
        segment = self._segments.get(name)
        if segment is None:
            segment = self._workspace.segment(name)
            if segment is None:
                segment = self._opened(name)
            self._segments[name] = segment
        return segment

    def add(self, name: str, parts: Sequence[BytesLike]) -> None:
        """Store a new segment; in memory if the disk doesn't take it."""
        size = sum(memoryview(part).nbytes for part in parts)
        if size <= IN_MEMORY_BYTES or not self._has_file(name, parts):
            segment = Segment.of_bytes(b"".join(parts), name)
            if size <= IN_MEMORY_BYTES:
                self._workspace.keep(segment)
        else:
            checksum = ChecksumBuilder()
            for part in parts:
                checksum.update(part)
            segment = Segment.open(self._path(name), name, checksum.finish())
            self._workspace.keep(segment)
        self._segments[name] = segment

    def discard(self, names: Iterable[str]) -> None:
        """Let go of segments, and delete their local files."""
        for name in names:
            self._segments.pop(name, None)
            self._streams.pop(name, None)
            self._workspace.forget(name)
            if self._directory is not None:
                with suppress(OSError):
                    os.unlink(self._path(name))

    def close(self) -> None:
        """Let go of all segments. Local files stay."""
        self._segments = {}

    def _opened(self, name: str) -> Segment:
        stream = self._streams.get(name)
        if stream is None:
            raise CheckpointNotFoundError(f"segment {name} is gone")
        if self._directory is None or isinstance(stream, ByteStreamStateHandle):
            segment = load_segment(name, stream)
            if isinstance(stream, ByteStreamStateHandle):
                self._workspace.keep(segment)
            return segment
        try:
            segment = Segment.open(self._path(name), name)
        except (CheckpointNotFoundError, CheckpointCorruptedError):
            try:
                self._fetch(name, stream)
            except (StorageFullError, StorageUnavailableError) as error:
                _log.warning("there will be no local copy of a segment: %s", error)
                return load_segment(name, stream)  # if storage was what failed, it fails again
            segment = Segment.open(self._path(name), name)
        self._workspace.keep(segment)
        return segment

    def _has_file(self, name: str, parts: Sequence[BytesLike]) -> bool:
        """Make a file of a segment, if files are wanted and the disk takes it."""
        if self._directory is None:
            return False
        try:
            self._write(name, parts)
        except (StorageFullError, StorageUnavailableError) as error:
            _log.warning("there will be no local copy of a segment: %s", error)
            return False
        return True

    def _fetch(self, name: str, stream: StreamStateHandle) -> None:
        """Copy a segment from its storage, verified while it is read."""
        with stream.open_input_stream() as source:
            self._write(name, iter(lambda: source.read(_READ_BYTES), b""))

    def _write(self, name: str, parts: Iterable[BytesLike]) -> None:
        """Make a file that is there whole, or not at all. Storage has the bytes: they needn't be durable."""
        path = self._path(name)
        unfinished = f"{path}.{os.urandom(8).hex()}.inprogress"
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                _write_all(descriptor, parts)
            finally:
                os.close(descriptor)
            os.replace(unfinished, path)
        except (OSError, CheckpointError) as error:
            with suppress(OSError):
                os.unlink(unfinished)
            if isinstance(error, CheckpointError):
                raise
            is_full = error.errno in _NO_ROOM
            kind = StorageFullError if is_full else StorageUnavailableError
            message = f"segment can't be written ({error.strerror})"
            raise kind(message, path) from error

    def _path(self, name: str) -> str:
        assert self._directory is not None
        return os.path.join(self._directory, name)


def _write_all(descriptor: int, parts: Iterable[BytesLike]) -> None:
    """Write all bytes, with as few calls as a system takes them in."""
    left: list[memoryview] = []
    for part in parts:
        left.append(memoryview(part).cast("B"))
        if len(left) == _MOST_BUFFERS:
            _write_buffers(descriptor, left)
            left = []
    _write_buffers(descriptor, left)


def _write_buffers(descriptor: int, left: list[memoryview]) -> None:
    left = [part for part in left if len(part)]
    while left:
        written = os.writev(descriptor, left)
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]
