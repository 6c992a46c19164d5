"""Bytes of state wherever they are: in the metadata, beside it, or in files that it names.

Metadata of checkpoints names files absolutely. Names are trusted only below the directory of the checkpoint or its
job, in places that Flink has for state in the same store, and where the caller says that files were moved to:
metadata from elsewhere can't make a reader open any file. If a file is not
there, it is looked for where it would be had the job's whole directory been moved.
"""

import re
from collections.abc import Mapping
from types import TracebackType
from typing import BinaryIO, Protocol, Self

from holdfast.common import read_exactly, uripath
from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.flink.binary import DataInput, damaged
from holdfast.flink.metadata.handles import FileStream, InlineStream, StreamHandle
from holdfast.locations.file_systems import file_system_for

_IN_A_JOB = re.compile(r".*/(chk-\d+|shared|taskowned)/(.+)")
"""A file of a job's checkpoints, as Flink names it."""
_IN_A_SAVEPOINT = re.compile(r".*/savepoint-[0-9a-f]+-[0-9a-f]+/[^/]+")
"""A file of a savepoint, as Flink before 1.11 names it."""
_CHECKPOINT = re.compile(r"chk-\d+")
_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/(?!/)")


class StateStream(Protocol):
    """Bytes that can be read anywhere; to be used in a `with` block.

    Attributes:
        size: How many there are.
    """

    size: int

    def read(self, start: int, end: int) -> bytes:
        """The bytes from one position to another.

        Raises:
            CheckpointCorruptedError: There are fewer.
            CheckpointNotFoundError: The file is missing.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class StateFiles:
    """The files of a checkpoint.

    Args:
        directory: Where its metadata is.
        moved: Where files are that were moved since, by what their URIs began with before.
        is_of_flink_1: Whether a Flink before 2.0 has written them.
    """

    def __init__(
        self, directory: str, moved: Mapping[str, str], *, is_of_flink_1: bool = False
    ) -> None:
        self._directory = directory
        self._is_of_flink_1 = is_of_flink_1
        self._moved = {_normal(old): uripath.normalize(new) for old, new in moved.items()}

    def open(self, handle: StreamHandle) -> StateStream:
        """The stream of a handle.

        Raises:
            InvalidRequestError: It is in another store than the checkpoint, or where Flink keeps no state.
            CheckpointCorruptedError: It is no name of a file.
        """
        if isinstance(handle, InlineStream):
            return _Inline(handle.data)
        return _File(self._uris(handle), handle)

    def input(self, stream: StateStream, start: int, end: int) -> DataInput:
        """Bytes of a stream from one position to another, to be read value by value."""
        return DataInput(stream.read(start, end), is_of_flink_1=self._is_of_flink_1)

    def _uris(self, handle: FileStream) -> list[str]:
        """Where a file may be, the likeliest first."""
        if handle.is_relative:
            if "/" in handle.uri or handle.uri in {"", ".", ".."} or "\0" in handle.uri:
                raise damaged("a file beside the metadata has a name that leads elsewhere")
            return [uripath.join(self._directory, handle.uri)]
        try:
            uri = _normal(handle.uri)
        except InvalidRequestError as error:
            raise damaged(f"a file has no usable name ({error.args[0]})") from error
        for old, new in self._moved.items():
            if f"{uri}/".startswith(f"{old.removesuffix('/')}/"):
                return [uripath.normalize(uripath.join(new, uri[len(old) :].strip("/")))]
        moved = self._moved_with_all(uri)
        if _store(uri) == _store(self._directory):
            if moved or self._is_near(uri) or _IN_A_SAVEPOINT.fullmatch(uri):
                return [uri, *moved]
            message = (
                "a file of the checkpoint is where no checkpoint of Flink keeps files; if it belongs to "
                "it, say so: moved={directory: directory}, or --moved DIRECTORY=DIRECTORY"
            )
            raise InvalidRequestError(message, uri)
        if not moved:
            message = (
                "a file of the checkpoint is in another store than its metadata; if that is where it "
                "is, or it was moved, say so: moved={old: new}, or --moved OLD=NEW"
            )
            raise InvalidRequestError(message, uri)
        return moved

    def _is_near(self, uri: str) -> bool:
        """Whether a file is below the directory of the metadata or, of a checkpoint, of its job."""
        directory = self._directory
        if _CHECKPOINT.fullmatch(uripath.name(directory)):
            directory = uripath.parent(directory)
        return uri.startswith(f"{directory}/")

    def _moved_with_all(self, uri: str) -> list[str]:
        """Where a file is if all of the job's directory was moved; nothing if that can't be said."""
        match = _IN_A_JOB.fullmatch(uri)
        if match is None:
            return []
        directory, (place, name) = self._directory, match.groups()
        if _CHECKPOINT.fullmatch(uripath.name(directory)):
            return [uripath.join(uripath.parent(directory), place, name)]
        # The checkpoint alone was copied, under another name.
        return [
            uripath.join(directory, name if _CHECKPOINT.fullmatch(place) else f"{place}/{name}")
        ]


class _Inline:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, start: int, end: int) -> bytes:
        _check(start, end, self.size)
        return self._data[start:end]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _File:
    def __init__(self, uris: list[str], handle: FileStream) -> None:
        self._uris = uris
        self._start = handle.start
        self._file: BinaryIO | None = None
        self.size = handle.size

    def read(self, start: int, end: int) -> bytes:
        _check(start, end, self.size)
        if self._file is None:
            self._file, uri = self._opened()
            length = self._file.seek(0, 2)
            if length < self._start + self.size:
                message = f"{uri} has {length} bytes, and {self._start + self.size} by its metadata"
                raise damaged(message)
        self._file.seek(self._start + start)
        return bytes(read_exactly(self._file, end - start))

    def _opened(self) -> tuple[BinaryIO, str]:
        """The file, and where it is. Raises `CheckpointNotFoundError`."""
        for uri in self._uris:
            try:
                return file_system_for(uri).open(uri), uri
            except CheckpointNotFoundError:
                continue
        message = (
            "a file of the checkpoint is missing; if it was moved, say where to: "
            "moved={old: new}, or --moved OLD=NEW"
        )
        raise CheckpointNotFoundError(message, self._uris[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _check(start: int, end: int, size: int) -> None:
    if not 0 <= start <= end <= size:
        message = f"bytes {start} to {end} are asked for, of {size}"
        raise damaged(message)


def _normal(uri: str) -> str:
    """A URI as it is here; Flink writes `file:/data` for `file:///data`."""
    return uripath.normalize(_ONE_SLASH.sub(r"\1:///", uri, count=1))


def _store(uri: str) -> str:
    scheme, _, rest = uri.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"
