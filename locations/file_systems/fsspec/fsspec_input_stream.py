"""A file of fsspec as a raw stream, whose only errors are ours."""

import io
from typing import Any

from holdfast.errors import InvalidRequestError, StorageUnavailableError, StreamClosedError
from holdfast.locations.file_systems.fsspec.instances import give_up, guarded, reached
from holdfast.locations.file_systems.port import BytesLike


class FsspecInputStream(io.RawIOBase):
    """A file that is read through fsspec; position and size are kept here.

    Because paramiko says nothing on seek, takes an unknown size for 0 and a connection that ends
    for the end of the file.
    """

    def __init__(self, protocol: str, uri: str) -> None:
        self._uri = uri
        self._position = 0
        self._file: Any = None
        with reached(protocol, uri) as (store, path):
            self._store = store
            info = store.info(path)
            if info["type"] == "directory":
                raise InvalidRequestError("not possible here (it is a directory)", uri)
            self._size = int(info["size"])
            self._file = store.open(path, "rb")
            if isinstance(self._file, io.BytesIO):
                # fsspec's memory gives out the stored object itself, with one position for all
                self._file = io.BytesIO(self._file.getvalue())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._require_open()
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}
        if whence not in base or base[whence] + offset < 0:
            raise InvalidRequestError(f"can't seek to {offset} from {whence}", self._uri)
        self._position = base[whence] + offset
        return self._position

    def readinto(self, buffer: BytesLike, /) -> int:  # type: ignore[override]  # 3.11 has no Buffer
        self._require_open()
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), self._size - self._position)
        if wanted <= 0:
            return 0
        with guarded(self._store, self._uri):
            self._file.seek(self._position)
            data = self._file.read(wanted)
            if not data:
                message = f"file ended at byte {self._position} of {self._size}"
                raise StorageUnavailableError(message, self._uri)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            give_up(self._store, file)
        super().close()

    def _require_open(self) -> None:
        if self.closed:
            raise StreamClosedError("stream is closed", self._uri)
