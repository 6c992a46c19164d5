"""The files of checkpoints: their sizes, and whether every byte is as it was written."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from holdfast.common import map_as_completed, raise_if_cancelled
from holdfast.errors import CheckpointError
from holdfast.locations.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    StreamStateHandle,
    checksum_of,
)
from holdfast.locations.storages import CompletedCheckpoint, is_file_of

_FILES_AT_A_TIME = 4
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class CheckpointSize:
    """The number of bytes of a checkpoint in its store.

    Attributes:
        new_bytes: Length of `_metadata`, with the state in it, and of the files in the checkpoint's own directory.
        referenced_bytes: Length of files in other directories, which other checkpoints may refer to as well.
    """

    new_bytes: int
    referenced_bytes: int

    @property
    def total_bytes(self) -> int:
        """Length of all files: the space that a copy needs."""
        return self.new_bytes + self.referenced_bytes


@dataclass(frozen=True, slots=True)
class VerifiedFile:
    """A file that was read to its end, or to the first error.

    Attributes:
        uri: The file.
        size: Expected length in bytes.
        failure: A `CheckpointNotFoundError` if it was deleted, a `CheckpointCorruptedError` if it is damaged; after
            any other error it is unknown whether it is intact. None if every byte is as it was written.
    """

    uri: str
    size: int
    failure: CheckpointError | None = None


def files_of(streams: Iterable[StreamStateHandle]) -> list[FileStateHandle]:
    """Return the files among streams, each once."""
    return list(
        {stream.uri: stream for stream in streams if isinstance(stream, FileStateHandle)}.values()
    )


def without_place(stream: StreamStateHandle) -> StreamStateHandle:
    """Return a handle without its place, so that handles of the same bytes are equal, in files and in `_metadata`."""
    if isinstance(stream, ByteStreamStateHandle):
        return FileStateHandle("", stream.size, checksum_of(stream.data))
    if isinstance(stream, FileStateHandle) and stream.checksum is not None:
        return msgspec.structs.replace(stream, uri="")
    return stream


def checkpoint_size(
    checkpoint: CompletedCheckpoint, streams: Iterable[StreamStateHandle] | None = None
) -> CheckpointSize:
    """Compute the size of a checkpoint from its metadata, without reading its files.

    Args:
        checkpoint: The checkpoint.
        streams: All streams of the checkpoint; by default those of the state of operators.
    """
    directory = checkpoint.location.external_pointer
    files = files_of(checkpoint.metadata.streams() if streams is None else streams)
    own = sum(file.size for file in files if is_file_of(file.uri, directory))
    return CheckpointSize(checkpoint.metadata_bytes + own, sum(file.size for file in files) - own)


def verify_files(
    streams: Iterable[StreamStateHandle],
    *,
    at_a_time: int = _FILES_AT_A_TIME,
    on_bytes: Callable[[int], object] = lambda _: None,
) -> Iterator[VerifiedFile]:
    """Read every byte of files and compare it with its checksum.

    Files after a damaged or deleted one are verified, too. Bytes in a handle itself were verified with their
    `_metadata`.

    Args:
        streams: Handles; a file with several equal handles is read once.
        at_a_time: Number of files that are read at the same time.
        on_bytes: Called repeatedly, from several threads, with the number of bytes that were read or need not be
            read. The numbers add up to the sizes of the files.

    Yields:
        One result per file, in the order of completion.
    """
    # Two handles that disagree about a file can't both be right.
    files = list(dict.fromkeys(stream for stream in streams if isinstance(stream, FileStateHandle)))

    def check(file: FileStateHandle) -> VerifiedFile:
        done = 0
        try:
            with file.open_input_stream() as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    raise_if_cancelled()
                    done += len(chunk)
                    on_bytes(len(chunk))
        except CheckpointError as failure:
            on_bytes(file.size - done)
            return VerifiedFile(file.uri, file.size, failure)
        return VerifiedFile(file.uri, file.size)

    yield from map_as_completed(check, files, max_threads=at_a_time)
