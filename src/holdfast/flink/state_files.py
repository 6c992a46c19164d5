"""Bytes of state: in the metadata, next to it, or in files that it names.

Metadata of checkpoints has absolute names of files. They are trusted only below the directory of the checkpoint or its
job, in Flink's places for state in the same store, and where the caller specifies that files were moved to, so that
foreign metadata can't make a reader open arbitrary files. If a file is missing, it is looked up where it would be if the
job's whole directory had been moved.
"""

import io
import os
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import BinaryIO, Self

from holdfast.common import read_exactly, uripath
from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.flink.binary import DataInput, corrupted_error
from holdfast.flink.handles import FileStream, InlineStream, StreamHandle
from holdfast.locations.file_systems import file_system_for

_IN_A_JOB = re.compile(r".*/(chk-\d+|shared|taskowned)/(.+)")
"""A file of a job's checkpoints, as Flink names it."""
_IN_A_SAVEPOINT = re.compile(r".*/savepoint-[0-9a-f]+-[0-9a-f]+/[^/]+")
"""A file of a savepoint, as Flink before 1.11 names it."""
_CHECKPOINT = re.compile(r"chk-\d+")
_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/(?!/)")


class StateStream:
    """Bytes with random access in a file, which is opened on the first read and closed at the end of a `with` block.

    Attributes:
        size: Number of bytes.
    """

    def __init__(self, open_file: Callable[[], BinaryIO], start: int, size: int) -> None:
        self._open_file = open_file
        self._start = start
        self._file: BinaryIO | None = None
        self.size = size

    def read(self, start: int, end: int) -> bytes:
        """Read the bytes between two positions.

        Raises:
            CheckpointCorruptedError: The stream is shorter.
            CheckpointNotFoundError: The file is missing.
        """
        if not 0 <= start <= end <= self.size:
            raise corrupted_error(f"range {start} to {end} is outside of {self.size} bytes")
        if self._file is None:
            self._file = self._open_file()
        self._file.seek(self._start + start)
        return bytes(read_exactly(self._file, end - start))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class StateFiles:
    """The files of a checkpoint.

    Args:
        directory: Directory of its metadata.
        moved: New beginnings of URIs of moved files, by their old ones.
        is_of_flink_1: Whether a Flink before 2.0 wrote them.
    """

    def __init__(
        self, directory: str, moved: Mapping[str, str], *, is_of_flink_1: bool = False
    ) -> None:
        self._directory = directory
        self._is_of_flink_1 = is_of_flink_1
        self._moved = {_normal(old): uripath.normalize(new) for old, new in moved.items()}

    def open(self, handle: StreamHandle) -> StateStream:
        """Open the stream of a handle.

        Raises:
            InvalidRequestError: It is in another store than the checkpoint, or where Flink stores no state.
            CheckpointCorruptedError: Its name is not a valid file name.
        """
        if isinstance(handle, InlineStream):
            return StateStream(partial(io.BytesIO, handle.data), 0, len(handle.data))
        end = handle.start + handle.size
        return StateStream(partial(_open_first, self._uris(handle), end), handle.start, handle.size)

    def input(self, stream: StateStream, start: int, end: int) -> DataInput:
        """Read the bytes of a stream between two positions as an input of values."""
        return DataInput(stream.read(start, end), is_of_flink_1=self._is_of_flink_1)

    def _uris(self, handle: FileStream) -> list[str]:
        """Return the possible URIs of a file, the likeliest first."""
        if handle.is_relative:
            if "/" in handle.uri or handle.uri in {"", ".", ".."} or "\0" in handle.uri:
                raise corrupted_error("a file in the metadata's directory has a name outside of it")
            return [uripath.join(self._directory, handle.uri)]
        try:
            uri = _normal(handle.uri)
        except InvalidRequestError as error:
            raise corrupted_error(f"a file has an invalid name ({error.args[0]})") from error
        for old, new in self._moved.items():
            if f"{uri}/".startswith(f"{old.removesuffix('/')}/"):
                return [uripath.normalize(uripath.join(new, uri[len(old) :].strip("/")))]
        moved = self._moved_with_all(uri)
        if _store(uri) == _store(self._directory):
            if moved or self._is_near(uri) or _IN_A_SAVEPOINT.fullmatch(uri):
                return [uri, *moved]
            message = (
                "a file of the checkpoint is where no checkpoint of Flink stores files; if it belongs to "
                "it, specify moved={directory: directory}, or --moved DIRECTORY=DIRECTORY"
            )
            raise InvalidRequestError(message, uri)
        if moved:
            return moved
        message = (
            "a file of the checkpoint is in another store than its metadata; to allow this, or if it was "
            "moved, specify moved={old: new}, or --moved OLD=NEW"
        )
        raise InvalidRequestError(message, uri)

    def _is_near(self, uri: str) -> bool:
        """Return whether a file is below the directory of the metadata or, for a checkpoint, of its job."""
        directory = self._directory
        if _CHECKPOINT.fullmatch(uripath.name(directory)):
            directory = uripath.parent(directory)
        return uri.startswith(f"{directory}/")

    def _moved_with_all(self, uri: str) -> list[str]:
        """Return the possible URIs of a file if the job's whole directory was moved."""
        match = _IN_A_JOB.fullmatch(uri)
        if match is None:
            return []
        directory, (place, name) = self._directory, match.groups()
        if _CHECKPOINT.fullmatch(uripath.name(directory)):
            return [uripath.join(uripath.parent(directory), place, name)]
        # Only the checkpoint was copied, under another name.
        return [
            uripath.join(directory, name if _CHECKPOINT.fullmatch(place) else f"{place}/{name}")
        ]


def _open_first(uris: list[str], end: int) -> BinaryIO:
    """Open the first existing file, which must have `end` bytes or more."""
    for uri in uris:
        try:
            file = file_system_for(uri).open(uri)
        except CheckpointNotFoundError:
            continue
        with ExitStack() as on_error:
            on_error.enter_context(file)
            length = file.seek(0, os.SEEK_END)
            if length < end:
                message = f"{uri} has {length} bytes instead of the {end} in its metadata"
                raise corrupted_error(message)
            on_error.pop_all()
        return file
    message = (
        "a file of the checkpoint is missing; if it was moved, specify where to: "
        "moved={old: new}, or --moved OLD=NEW"
    )
    raise CheckpointNotFoundError(message, uris[0])


def _normal(uri: str) -> str:
    """Normalize a URI of Flink, which writes `file:/data` for `file:///data`."""
    return uripath.normalize(_ONE_SLASH.sub(r"\1:///", uri, count=1))


def _store(uri: str) -> str:
    scheme, _, rest = uri.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"
