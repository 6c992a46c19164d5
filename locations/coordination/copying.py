"""Copies of checkpoints and of files of state, several files at a time."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import BinaryIO

import msgspec

from holdfast.common import map_in_parallel, raise_if_cancelled, uripath
from holdfast.errors import OutcomeUnknownError
from holdfast.locations.coordination.checkpoint_files import files_of
from holdfast.locations.coordination.commit import complete_checkpoint
from holdfast.locations.handles import ByteStreamStateHandle, FileStateHandle, StreamStateHandle
from holdfast.locations.metadata import CheckpointMetadata, new_commit_token
from holdfast.locations.storages import (
    CheckpointedStateScope,
    CheckpointStorageLocation,
    CompletedCheckpoint,
    FileSystemCheckpointStorage,
)

_log = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20


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
    scope: CheckpointedStateScope = CheckpointedStateScope.EXCLUSIVE,
    on_bytes: Callable[[int], object] = lambda _: None,
) -> StreamStateHandle:
    """Copy bytes into a pending checkpoint or savepoint."""
    with (
        open_source() as source,
        location.create_checkpoint_state_output_stream(scope) as target,
    ):
        for chunk in chunks(source):
            raise_if_cancelled()
            target.write(chunk)
            on_bytes(len(chunk))
        return target.close_and_get_handle() or ByteStreamStateHandle(b"")


def copy_files(
    metadata: CheckpointMetadata,
    copy: Callable[[FileStateHandle], StreamStateHandle],
    *,
    also: Iterable[StreamStateHandle] = (),
) -> tuple[CheckpointMetadata, dict[str, StreamStateHandle]]:
    """Copy each file of state once; returns the metadata of the copies, and the copies by old URI.

    Args:
        metadata: The metadata of the files.
        copy: Copies a file.
        also: Further files to copy.
    """
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


def chunks(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the rest of a stream, at most 1 MiB at a time."""
    while chunk := stream.read(_CHUNK_BYTES):
        yield chunk
