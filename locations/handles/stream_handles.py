"""Handles to one stream of bytes: in a file, in the handle itself, or by the name of a stream stored before."""

import io
from typing import BinaryIO, NoReturn, cast

import msgspec

from holdfast.common import Count, uripath
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError
from holdfast.locations.file_systems import BytesLike, file_system_for
from holdfast.locations.handles.checksum import Checksum, ChecksumBuilder, VerifyingInputStream


class ByteStreamStateHandle(msgspec.Struct, frozen=True, tag="bytes"):
    """State that is small enough to be in the handle itself."""

    data: bytes

    @property
    def size(self) -> int:
        """Length in bytes."""
        return len(self.data)

    def __repr__(self) -> str:
        # Without the bytes: they are users' rows, and this ends up in logs.
        return f"{type(self).__name__}({self.size} bytes)"

    def open_input_stream(self) -> BinaryIO:
        """Open a seekable stream of the bytes."""
        return io.BytesIO(self.data)

    def discard_state(self) -> None:
        """Do nothing: the bytes are in the handle."""


class FileStateHandle(msgspec.Struct, frozen=True, tag="file"):
    """State in a file.

    Attributes:
        uri: Normalized URI of the file.
        size: Length in bytes.
        checksum: The checksum of the bytes. None only for `_metadata`, which ends with its checksum.
    """

    uri: str
    size: Count
    checksum: Checksum | None = None

    def open_input_stream(self) -> BinaryIO:
        """Open a seekable, unbuffered stream that verifies all bytes that it returns.

        Raises:
            CheckpointNotFoundError: The file is gone.
            CheckpointCorruptedError: Its length differs; or, while reading, a block's checksum does.
        """
        raw = file_system_for(self.uri).open(self.uri)
        if self.checksum is None:
            return raw
        stream = VerifyingInputStream(raw, uri=self.uri, size=self.size, checksum=self.checksum)
        return cast("BinaryIO", stream)

    def check(self, data: BytesLike) -> None:
        """Compare bytes from another source with those of the file, by length and checksum.

        Raises:
            CheckpointCorruptedError: The bytes differ.
        """
        size = memoryview(data).nbytes
        if size != self.size:
            raise CheckpointCorruptedError(f"{size} bytes, expected {self.size}", self.uri)
        if self.checksum is not None:
            actual = ChecksumBuilder(self.checksum.block_bytes)
            actual.update(data)
            if actual.finish() != self.checksum:
                message = f"not all bytes have the expected checksum ({self.checksum.algorithm})"
                raise CheckpointCorruptedError(message, self.uri)

    def discard_state(self) -> None:
        """Delete the file; a missing one counts as deleted."""
        file_system_for(self.uri).delete([self.uri])


class PlaceholderStreamStateHandle(msgspec.Struct, frozen=True, tag="placeholder"):
    """A shared stream of the checkpoint that a task was restored from, which the task did not write again.

    Only reports of tasks have placeholders: the driver replaces them by the handles of the streams before the
    checkpoint is completed. `_metadata` never has any.

    Attributes:
        name: The stream's name in its handle, such as the name of a segment.
        size: Length of the stream in bytes.

    Source:
        Flink, PlaceholderStreamStateHandle.
    """

    name: str
    size: Count

    def open_input_stream(self) -> NoReturn:
        """Raise `InvalidRequestError`: only the handle of the stream leads to its bytes."""
        raise InvalidRequestError(
            f"placeholder of shared stream {self.name!r} has no bytes to read"
        )

    def discard_state(self) -> None:
        """Do nothing: the stream belongs to the restored checkpoint."""


StreamStateHandle = ByteStreamStateHandle | FileStateHandle | PlaceholderStreamStateHandle
"""Every type of stream handle; stored and sent handles have a tag."""


def is_inside(handle: StreamStateHandle, directory: str) -> bool:
    """Return whether the handle leads to a file directly in that directory."""
    return isinstance(handle, FileStateHandle) and uripath.parent(handle.uri) == directory
