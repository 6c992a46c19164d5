"""Reading a file in HDFS from wherever the reader stands."""

import io
from collections.abc import Iterator
from typing import Any

from holdfast.errors import StreamClosedError
from holdfast.locations.file_systems.hdfs.hdfs_errors import translated
from holdfast.locations.file_systems.port import BytesLike
from holdfast.locations.file_systems.positioned import PositionedInputStream


class HdfsInputStream(PositionedInputStream):
    """One request to a DataNode as long as the reader goes on where it was."""

    def __init__(self, reader: Any, uri: str) -> None:
        self._reader = reader
        self._uri = uri
        self._size = int(reader.size)
        self._chunks: Iterator[bytes] | None = None
        self._left = memoryview(b"")

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        before = self._position
        if super().seek(offset, whence) != before:
            self._forget()
        return self._position

    def readinto(self, buffer: BytesLike, /) -> int:  # type: ignore[override]  # 3.11 has no Buffer
        if self.closed:
            raise StreamClosedError("stream is closed", self._uri)
        view = memoryview(buffer).cast("B")[: max(0, self._size - self._position)]
        filled = 0
        try:
            with translated(self._uri):
                while filled < len(view):
                    part = self._piece()[: len(view) - filled]
                    if not part:
                        break
                    view[filled : filled + len(part)] = part
                    self._left = self._left[len(part) :]
                    filled += len(part)
        except BaseException:
            self._forget()  # pieces are ahead of the position
            raise
        self._position += filled
        return filled

    def _piece(self) -> memoryview:
        """The piece that has come and was not given out yet; the next piece if there is none."""
        if not self._left:
            if self._chunks is None:
                length = self._size - self._position
                self._chunks = self._reader.read_range_stream(self._position, length)
            self._left = memoryview(next(self._chunks, b""))
        return self._left

    def close(self) -> None:
        self._forget()
        super().close()

    def _forget(self) -> None:
        self._chunks = None
        self._left = memoryview(b"")
