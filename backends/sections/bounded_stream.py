"""Reading a part of a state's stream as a file of its own."""

import io
from typing import BinaryIO, Self, cast

from holdfast.common import read_exactly
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError
from holdfast.locations.file_systems import BytesLike
from holdfast.locations.handles import StreamStateHandle


def location_of(handle: StreamStateHandle) -> str:
    """Where the stream's bytes are, for errors; empty if they are in the handle."""
    return getattr(handle, "uri", "")


class StateSource:
    """The stream behind a handle, opened by its first reader and shared by all."""

    def __init__(self, handle: StreamStateHandle) -> None:
        self.size = handle.size
        self.location = location_of(handle)
        self._handle = handle
        self._stream: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()

    def readinto(self, position: int, buffer: memoryview) -> int:
        """Read some bytes from there; 0 at the end."""
        if self._stream is None:
            self._stream = self._handle.open_input_stream()
        self._stream.seek(position)
        count: int = self._stream.readinto(buffer)  # type: ignore[attr-defined]  # all have it
        return count


class BoundedInputStream(io.RawIOBase):
    """A part of a source, as a file."""

    def __init__(self, source: StateSource, offset: int, length: int) -> None:
        self._source = source
        self._offset = offset
        self._length = length
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        if base + offset < 0:
            raise InvalidRequestError(f"position {base + offset} is before the partition")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: BytesLike, /) -> int:  # type: ignore[override]
        wanted = memoryview(buffer).cast("B")[: self._left()]
        if not wanted:
            return 0
        count = self._source.readinto(self._offset + self._position, wanted)
        if not count:
            message = f"state ends {self._left()} bytes before its partition does"
            raise CheckpointCorruptedError(message, self._source.location)
        self._position += count
        return count

    def readall(self) -> bytes:
        return bytes(read_exactly(cast("BinaryIO", self), self._left()))

    def _left(self) -> int:
        end = self._offset + self._length
        if self._offset < 0 or self._length < 0 or end > self._source.size:
            message = (
                f"partition from {self._offset} to {end} is outside of the "
                f"{self._source.size} bytes of state"
            )
            raise CheckpointCorruptedError(message, self._source.location)
        return max(0, self._length - self._position)
