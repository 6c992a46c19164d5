"""The part that input streams share which know their length and position."""

import io

from holdfast.errors import InvalidRequestError


class PositionedInputStream(io.RawIOBase):
    """A stream of which moving costs no request; the next read goes to where it stands."""

    _uri: str
    _size: int
    _position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise InvalidRequestError(f"position {base + offset} is negative", self._uri)
        self._position = base + offset
        return self._position
