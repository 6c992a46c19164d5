"""Handles to one stream of bytes, which are in a file or in the handle itself; and what stands for a handle."""

import io
from typing import BinaryIO, NoReturn, cast

import msgspec

from holdfast.common import Count, uripath
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError
from holdfast.locations.file_systems import BytesLike, file_system_for
from holdfast.locations.handles.checksum import Checksum, ChecksumBuilder, VerifyingInputStream


class ByteStreamStateHandle(msgspec.Struct, frozen=True, tag="bytes"):
    """State that is small enough to travel in the handle itself."""

    data: bytes

    @property
    def size(self) -> int:
        """Length in bytes."""
        return len(self.data)

    def __repr__(self) -> str:
        # Without the bytes: they are rows of somebody's stream, and this ends up in logs.
        return f"{type(self).__name__}({self.size} bytes)"

    def open_input_stream(self) -> BinaryIO:
        """A seekable stream of the bytes."""
        return io.BytesIO(self.data)

    def discard_state(self) -> None:
        """Nothing to do: the bytes go with the handle."""


class FileStateHandle(msgspec.Struct, frozen=True, tag="file"):
    """State in a file of its own.

    Attributes:
        uri: Normalized URI of the file. A `_metadata` file stores only the name of a file that lies
            beside it.
        size: Length in bytes.
        checksum: The checksum of the bytes. None for `_metadata` alone, which ends with its checksum.
    """

    uri: str
    size: Count
    checksum: Checksum | None = None

    def open_input_stream(self) -> BinaryIO:
        """A seekable, unbuffered stream that verifies what it reads.

        Raises:
            CheckpointNotFoundError: The file is gone.
            CheckpointCorruptedError: Its length differs; while reading: a block's checksum.
        """
        raw = file_system_for(self.uri).open(self.uri)
        if self.checksum is None:
            return raw
        stream = VerifyingInputStream(raw, uri=self.uri, size=self.size, checksum=self.checksum)
        return cast("BinaryIO", stream)

    def check(self, data: BytesLike) -> None:
        """Compare bytes from somewhere else with those of the file, by length and checksum.

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
        """Delete the file. If it is gone already, that is as good."""
        file_system_for(self.uri).delete([self.uri])


class PlaceholderStreamStateHandle(msgspec.Struct, frozen=True, tag="placeholder"):
    """A task's word that the checkpoint it was restored from has a shared stream, which is not written again.

    Only reports of tasks have placeholders: the driver replaces them by the streams' own handles before the
    checkpoint is completed. `_metadata` never has any.

    Attributes:
        name: The stream's name in the handle that has it, such as a segment's.
        size: Length of the stream in bytes.

    Source:
        Flink, PlaceholderStreamStateHandle.
    """

    name: str
    size: Count

    def open_input_stream(self) -> NoReturn:
        """Raises InvalidRequestError: the bytes are behind another handle."""
        raise InvalidRequestError(
            f"placeholder of shared stream {self.name!r} has no bytes to read"
        )

    def discard_state(self) -> None:
        """Nothing to do: the stream belongs to the checkpoint that has it."""


StreamStateHandle = ByteStreamStateHandle | FileStateHandle | PlaceholderStreamStateHandle
"""Every kind, told apart by its tag when stored or sent."""


def is_inside(handle: StreamStateHandle, directory: str) -> bool:
    """Whether the handle's file lies directly in that directory."""
    return isinstance(handle, FileStateHandle) and uripath.parent(handle.uri) == directory
