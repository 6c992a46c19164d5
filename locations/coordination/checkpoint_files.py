"""The files of checkpoints: their sizes, whether every byte is as it was written, and copies of them."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import BinaryIO

import msgspec

from holdfast.common import chunks, map_as_completed, map_in_parallel, raise_if_cancelled, uripath
from holdfast.errors import CheckpointError, OutcomeUnknownError
from holdfast.locations.coordination.commit import complete_checkpoint
from holdfast.locations.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    StreamStateHandle,
    files_of,
)
from holdfast.locations.metadata import CheckpointMetadata, new_commit_token
from holdfast.locations.storages import (
    CheckpointedStateScope,
    CheckpointStorageLocation,
    CompletedCheckpoint,
    FileSystemCheckpointStorage,
    copy_bytes,
    is_file_of,
)

_log = logging.getLogger(__name__)

_FILES_AT_A_TIME = 4


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
                for chunk in chunks(stream):
                    raise_if_cancelled()
                    done += len(chunk)
                    on_bytes(len(chunk))
        except CheckpointError as failure:
            on_bytes(file.size - done)
            return VerifiedFile(file.uri, file.size, failure)
        return VerifiedFile(file.uri, file.size)

    yield from map_as_completed(check, files, max_threads=at_a_time)


def copy_checkpoint(
    checkpoint: CompletedCheckpoint,
    target: str | PathLike[str],
    *,
    also: Sequence[StreamStateHandle] = (),
    coordinator_states: (
        Callable[[Mapping[str, StreamStateHandle], str], dict[str, bytes]] | None
    ) = None,
    on_bytes: Callable[[int], object] = lambda _: None,
) -> CompletedCheckpoint:
    """Copy a checkpoint or savepoint with all its files, verified, into a savepoint.

    The copy is a directory with all its files. It exists once its `_metadata` does, which is published last. If
    anything fails before, nothing remains.

    Args:
        checkpoint: The checkpoint to copy.
        target: URI of the parent directory of the savepoint, in any store.
        also: Files of its coordinator states.
        coordinator_states: Returns new coordinator states, given the copies by the URI of the original, and the
            URI of the new directory.
        on_bytes: Called repeatedly, from several threads, with the number of bytes copied since the last call.

    Raises:
        CheckpointNotFoundError: A file was deleted.
        CheckpointCorruptedError: A file is damaged.
        StorageUnavailableError: A file could not be read or written.
        InvalidRequestError: The target is not valid.
        OutcomeUnknownError: The store did not report whether the copy was completed.
    """
    metadata = checkpoint.metadata
    # State in files stays in files. The new directory's name is random: there is one writer.
    storage = FileSystemCheckpointStorage(
        uripath.text(target), inline_threshold=0, single_writer=True
    )
    access = storage.create_checkpoint_storage(metadata.job_id)
    location = access.initialize_location_for_savepoint(metadata.checkpoint_id, target)
    with dispose_on_error(location):
        copied, copies = copy_files(
            metadata,
            lambda file: copy_stream(file.open_input_stream, location, on_bytes=on_bytes),
            also=also,
        )
        if coordinator_states is not None:
            states = coordinator_states(copies, location.external_pointer)
            copied = msgspec.structs.replace(copied, coordinator_states=states)
        copied = msgspec.structs.replace(copied, commit_token=new_commit_token(), epoch=0)
        return complete_checkpoint(location, copied)


def copy_stream(
    open_source: Callable[[], BinaryIO],
    location: CheckpointStorageLocation,
    *,
    on_bytes: Callable[[int], object] = lambda _: None,
) -> StreamStateHandle:
    """Copy bytes into a pending checkpoint or savepoint."""
    with (
        open_source() as source,
        location.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE) as target,
    ):
        copy_bytes(source, target, on_bytes=on_bytes)
        return target.close_and_get_handle() or ByteStreamStateHandle(b"")


def copy_file(
    file: FileStateHandle,
    location: CheckpointStorageLocation,
    *,
    scope: CheckpointedStateScope = CheckpointedStateScope.EXCLUSIVE,
) -> StreamStateHandle:
    """Copy a file of state into a pending checkpoint or savepoint: in the store if it can do that, otherwise verified."""
    with location.create_checkpoint_state_output_stream(scope) as target:
        if not target.adopt_stored(file):
            with file.open_input_stream() as source:
                copy_bytes(source, target)
        return target.close_and_get_handle() or ByteStreamStateHandle(b"")


def copy_files(
    metadata: CheckpointMetadata,
    copy: Callable[[FileStateHandle], StreamStateHandle],
    *,
    also: Iterable[StreamStateHandle] = (),
) -> tuple[CheckpointMetadata, dict[str, StreamStateHandle]]:
    """Copy each file of state, and further ones, once; returns the copies' metadata, and the copies by old URI."""
    files = files_of([*metadata.streams(), *also])
    copied = dict(zip((file.uri for file in files), map_in_parallel(copy, files), strict=True))

    def change(handle: StreamStateHandle) -> StreamStateHandle:
        return copied[handle.uri] if isinstance(handle, FileStateHandle) else handle

    # A copy does not need the files that the job has claimed, and must not delete them.
    return msgspec.structs.replace(metadata.with_streams(change), claimed=()), copied


@contextmanager
def dispose_on_error(location: CheckpointStorageLocation) -> Iterator[None]:
    """Dispose of a pending checkpoint or savepoint if this block fails, unless it may exist."""
    try:
        yield
    except OutcomeUnknownError:
        raise  # it may exist
    except BaseException:
        try:
            location.dispose_on_failure()
        except Exception:  # noqa: BLE001  # the first error is the one to report
            _log.warning("could not clean up %s", location.external_pointer, exc_info=True)
        raise
