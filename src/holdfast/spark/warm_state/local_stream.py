"""A copy in the making, on the disk of the host."""

import os
import uuid
from contextlib import suppress

from holdfast.errors import StorageFullError, StreamClosedError
from holdfast.locations.file_systems import BytesLike
from holdfast.locations.storages import MAX_INLINE_THRESHOLD_BYTES, DiscardingStream

UNFINISHED = ".inprogress"
"""Ends the names of files in the making."""


def is_unfinished(name: str) -> bool:
    """Whether a file of that name is, or was, being written."""
    return name.endswith(UNFINISHED)


class LocalOutputStream(DiscardingStream):
    """Writes a file that is deleted if it is not finished, and never synced: no power cut leaves a need for it.

    There is no file as long as the bytes are few enough to stay in the handle.

    Args:
        directory: Where the file goes; made if it is not there.
        max_bytes: Most bytes that the file may have.
    """

    def __init__(self, directory: str, *, max_bytes: int) -> None:
        self.path = os.path.join(directory, f"{uuid.uuid4().hex}{UNFINISHED}")
        self._directory = directory
        self._max_bytes = max_bytes
        self._size = 0
        self._held = bytearray()
        self._descriptor: int | None = None

    def write(self, data: BytesLike, /) -> int:
        """Append the bytes.

        Raises:
            OSError: The disk did not take the bytes.
            StorageFullError: There are more than `max_bytes`.
            StreamClosedError: The stream is finished or closed.
        """
        self._check_open()
        view = memoryview(data).cast("B")
        if self._size + len(view) > self._max_bytes:
            message = f"state of more than {self._max_bytes} bytes exceeds the limit for copies"
            raise StorageFullError(message)
        if len(self._held) + len(view) > MAX_INLINE_THRESHOLD_BYTES:
            self._write_held()
            self._write_file(view)
        else:
            self._held += view
        self._size += len(view)
        return len(view)

    def finish(self) -> None:
        """Keep the file, at `path`. Raises what `write` raises."""
        self._check_open()
        self._write_held()
        self._finished = True
        self._close_descriptor()

    def close(self) -> None:
        """Delete the file, unless it is finished. Never raises."""
        if not self._finished:
            self._finished = True
            self._held = bytearray()
            if self._descriptor is not None:
                self._close_descriptor()
                unlink(self.path)

    def _check_open(self) -> None:
        if self._finished:
            raise StreamClosedError("the copy is finished or discarded")

    def _write_held(self) -> None:
        held, self._held = self._held, bytearray()
        self._write_file(memoryview(held))

    def _write_file(self, view: memoryview) -> None:
        if self._descriptor is None:
            self._descriptor = self._create()
        while view:
            view = view[os.write(self._descriptor, view) :]

    def _create(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return os.open(self.path, flags, 0o600)
        except FileNotFoundError:
            with suppress(FileExistsError):
                os.mkdir(self._directory, 0o700)
            return os.open(self.path, flags, 0o600)

    def _close_descriptor(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def unlink(path: str) -> None:
    """Delete a file, if that is possible."""
    with suppress(OSError):
        os.unlink(path)
