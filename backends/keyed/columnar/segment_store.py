"""The segments of a subtask: local files that are mapped, fetched when they are not there; small ones in memory."""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from holdfast.backends.keyed.columnar.local_segment import LocalSegment, write_file
from holdfast.backends.keyed.columnar.workspace import Workspace
from holdfast.backends.keyed.segments import Segment, load_segment
from holdfast.errors import (
    CheckpointNotFoundError,
    StorageFullError,
    StorageUnavailableError,
)
from holdfast.locations.file_systems import BytesLike
from holdfast.locations.handles import ByteStreamStateHandle, Checksum, StreamStateHandle

_log = logging.getLogger(__name__)

IN_MEMORY_BYTES = 20 << 10
"""Segments of at most so many bytes are kept in memory: a file is not worth its while."""


class SegmentStore:
    """Segments by name.

    A local file that is damaged, cut off or gone is fetched again, also when that turns out in the middle of a
    look-up: only what storage has wrong, too, is an error. Whether a file was changed is asked whenever its segment
    is: pages that are cut off while an array of them is being read end the process, and nothing can prevent that.

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
            CheckpointNotFoundError: The segment is gone.
            CheckpointCorruptedError: The segment is damaged.
            StorageUnavailableError: The segment can't be fetched.
        """
        segment = self._segments.get(name)
        if segment is not None and segment.is_changed():
            segment = None
        if segment is None:
            segment = self._workspace.segment(name)
            if segment is not None and segment.is_changed():
                self._workspace.forget(name)
                segment = None
            local = self._local(name)
            if segment is None:
                segment = self._opened(name, local)
            if local is not None:
                segment.fetch_if_damaged(local.fetched_again)
            self._segments[name] = segment
        return segment

    def add(self, name: str, parts: Sequence[BytesLike], checksum: Checksum) -> None:
        """Store a new segment, whose parts have this checksum; in memory if the disk doesn't take it."""
        size = sum(memoryview(part).nbytes for part in parts)
        if size <= IN_MEMORY_BYTES or not self._has_file(name, parts):
            segment = Segment.of_bytes(b"".join(parts), name)
            if size <= IN_MEMORY_BYTES:
                self._workspace.keep(segment)
        else:
            segment = Segment.open(self._path(name), name, checksum)
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

    def _opened(self, name: str, local: LocalSegment | None) -> Segment:
        if local is None:
            stream = self._streams.get(name)
            if stream is None and name in self._segments:  # written here: this file is all there is
                return Segment.open(self._path(name), name)
            if stream is None:
                raise CheckpointNotFoundError(f"segment {name} is gone")
            segment = load_segment(name, stream)
            if isinstance(stream, ByteStreamStateHandle):
                self._workspace.keep(segment)
            return segment
        segment = local.open()
        if segment.location == local.path:
            self._workspace.keep(segment)
        return segment

    def _local(self, name: str) -> LocalSegment | None:
        """The local copy of a segment that storage has; None if there is to be none."""
        stream = self._streams.get(name)
        if stream is None or self._directory is None or isinstance(stream, ByteStreamStateHandle):
            return None
        return LocalSegment(name, self._path(name), stream)

    def _has_file(self, name: str, parts: Sequence[BytesLike]) -> bool:
        """Make a file of a segment, if files are wanted and the disk takes it."""
        if self._directory is None:
            return False
        try:
            write_file(self._path(name), parts)
        except (StorageFullError, StorageUnavailableError) as error:
            _log.warning("there will be no local copy of a segment: %s", error)
            return False
        return True

    def _path(self, name: str) -> str:
        assert self._directory is not None
        return os.path.join(self._directory, name)
