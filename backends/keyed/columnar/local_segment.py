"""The local copy of a segment: a file that is mapped, and fetched from storage when it is not there or is damaged."""

import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from holdfast.backends.keyed.segments import Segment, load_segment
from holdfast.common import FULL_ERRNOS, replace_file
from holdfast.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    StorageFullError,
    StorageUnavailableError,
)
from holdfast.locations.file_systems import BytesLike
from holdfast.locations.handles import StreamStateHandle

_log = logging.getLogger(__name__)

_READ_BYTES = 1 << 20
_MOST_BUFFERS = 512


@dataclass(frozen=True, slots=True)
class LocalSegment:
    """A segment of storage, and where its local copy is.

    Attributes:
        name: The segment's name.
        path: The local file.
        stream: The segment in storage.
    """

    name: str
    path: str
    stream: StreamStateHandle

    def open(self) -> Segment:
        """The segment; from memory if the disk doesn't take the copy.

        Raises:
            CheckpointNotFoundError: The segment is gone from storage.
            CheckpointCorruptedError: The segment is damaged in storage.
            StorageUnavailableError: The segment can't be fetched.
        """
        try:
            return Segment.open(self.path, self.name)
        except CheckpointNotFoundError:
            return self._fetched()
        except CheckpointCorruptedError as error:
            return self.fetched_again(str(error))

    def fetched_again(self, flaw: str) -> Segment:
        """The segment without the local file, which is damaged: no other task maps it. Raises what `open` does.

        Args:
            flaw: What is wrong with the local copy.
        """
        _log.warning(
            "the local copy of segment %s is damaged, and is fetched again: %s", self.name, flaw
        )
        with suppress(OSError):
            os.unlink(self.path)
        return self._fetched()

    def _fetched(self) -> Segment:
        try:
            with self.stream.open_input_stream() as source:  # verified while it is read
                write_file(self.path, iter(lambda: source.read(_READ_BYTES), b""))
        except (StorageFullError, StorageUnavailableError) as error:
            _log.warning("there will be no local copy of a segment: %s", error)
            return load_segment(self.name, self.stream)  # if storage failed, it fails again
        return Segment.open(self.path, self.name)


def write_file(path: str, parts: Iterable[BytesLike]) -> None:
    """Make a file that is there whole, or not at all. Storage has the bytes: they needn't be durable.

    Raises:
        StorageFullError: There is no room.
        StorageUnavailableError: The file can't be written.
        CheckpointError: An error of the parts.
    """
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with replace_file(path) as unfinished:
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                _write_all(descriptor, parts)
            finally:
                os.close(descriptor)
    except OSError as error:
        is_full = error.errno in FULL_ERRNOS
        kind = StorageFullError if is_full else StorageUnavailableError
        message = f"segment can't be written ({error.strerror})"
        raise kind(message, path) from error


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
