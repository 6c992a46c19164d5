"""Read every byte of files, and see whether it is what was written."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from holdfast.common import map_as_completed, raise_if_cancelled
from holdfast.errors import CheckpointError
from holdfast.locations.handles import FileStateHandle, StreamStateHandle

_AT_A_TIME = 4
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class VerifiedFile:
    """A file that was read to its end, or as far as it could be.

    Attributes:
        uri: The file.
        size: Length in bytes that it should have.
        failure: What is wrong: a `CheckpointNotFoundError` if it is gone, a
            `CheckpointCorruptedError` if it is damaged; after any other one it is not known whether
            it is whole. None if every byte is as it was written.
    """

    uri: str
    size: int
    failure: CheckpointError | None = None


def verify_files(
    streams: Iterable[StreamStateHandle],
    *,
    at_a_time: int = _AT_A_TIME,
    on_bytes: Callable[[int], object] = lambda _: None,
) -> Iterator[VerifiedFile]:
    """Read every byte of the files behind handles, and compare it with its checksum.

    It goes on behind a file that is damaged or gone. What travels in a handle itself was verified
    with the `_metadata` that it was read from.

    Args:
        streams: Handles; a file that several lead to is read once.
        at_a_time: Number of files that are read at the same time.
        on_bytes: Called again and again with the number of bytes that are done, or need not be read any more; from
            several threads. All of them add up to the sizes of the files.

    Yields:
        One for each file, in the order in which they are done.
    """
    # Two that disagree about a file can't both be right.
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
