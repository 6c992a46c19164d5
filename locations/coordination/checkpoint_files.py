"""The files that checkpoints lead to, and what they take."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from holdfast.locations.handles import FileStateHandle, StreamStateHandle
from holdfast.locations.storages import CompletedCheckpoint, lies_in


@dataclass(frozen=True, slots=True)
class CheckpointSize:
    """What a checkpoint takes in its store.

    Attributes:
        new_bytes: Its `_metadata`, with the state inside, and files in its own directory.
        referenced_bytes: Files elsewhere, which other checkpoints may lead to as well.
    """

    new_bytes: int
    referenced_bytes: int

    @property
    def total_bytes(self) -> int:
        """Both together: what a copy of it takes."""
        return self.new_bytes + self.referenced_bytes


def files_of(streams: Iterable[StreamStateHandle]) -> list[FileStateHandle]:
    """The files that handles lead to, each once."""
    return list({one.uri: one for one in streams if isinstance(one, FileStateHandle)}.values())


def without_place(stream: StreamStateHandle) -> StreamStateHandle:
    """The handle without where its file is: equal for the same bytes, as their checksums say it."""
    if isinstance(stream, FileStateHandle) and stream.checksum is not None:
        return msgspec.structs.replace(stream, uri="")
    return stream


def size_of(
    checkpoint: CompletedCheckpoint, streams: Iterable[StreamStateHandle] | None = None
) -> CheckpointSize:
    """What a checkpoint takes; no file is looked at for it.

    Args:
        checkpoint: The checkpoint.
        streams: All that it leads to; None if that is the state of operators alone.
    """
    directory = checkpoint.location.external_pointer
    files = files_of(checkpoint.metadata.streams() if streams is None else streams)
    own = sum(one.size for one in files if lies_in(one.uri, directory))
    return CheckpointSize(checkpoint.metadata_bytes + own, sum(one.size for one in files) - own)
