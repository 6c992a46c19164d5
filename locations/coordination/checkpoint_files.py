"""The files that checkpoints lead to, and what they take."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from holdfast.locations.handles import FileStateHandle, StreamStateHandle
from holdfast.locations.storages import CompletedCheckpoint, is_file_of


@dataclass(frozen=True, slots=True)
class CheckpointSize:
    """The bytes that a checkpoint takes in its store.

    Attributes:
        new_bytes: The bytes of `_metadata`, with the state inside, and of files in the checkpoint's own directory.
        referenced_bytes: Files elsewhere, which other checkpoints may lead to as well.
    """

    new_bytes: int
    referenced_bytes: int

    @property
    def total_bytes(self) -> int:
        """Length of all its files: the room that a copy takes."""
        return self.new_bytes + self.referenced_bytes


def files_of(streams: Iterable[StreamStateHandle]) -> list[FileStateHandle]:
    """The files that handles lead to, each once."""
    return list(
        {stream.uri: stream for stream in streams if isinstance(stream, FileStateHandle)}.values()
    )


def without_place(stream: StreamStateHandle) -> StreamStateHandle:
    """The handle without the place of its file: handles of the same bytes, by their checksums, are equal then."""
    if isinstance(stream, FileStateHandle) and stream.checksum is not None:
        return msgspec.structs.replace(stream, uri="")
    return stream


def size_of(
    checkpoint: CompletedCheckpoint, streams: Iterable[StreamStateHandle] | None = None
) -> CheckpointSize:
    """The room that a checkpoint takes, by what its metadata says; no file is looked at.

    Args:
        checkpoint: The checkpoint.
        streams: All streams that the checkpoint leads to; None if these are the state of operators alone.
    """
    directory = checkpoint.location.external_pointer
    files = files_of(checkpoint.metadata.streams() if streams is None else streams)
    own = sum(file.size for file in files if is_file_of(file.uri, directory))
    return CheckpointSize(checkpoint.metadata_bytes + own, sum(file.size for file in files) - own)
