"""Copy files of state into a checkpoint that is being made, several at a time."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import BinaryIO

import msgspec

from holdfast.common import map_in_parallel, raise_if_cancelled, uripath
from holdfast.errors import OutcomeUnknownError
from holdfast.locations.coordination.checkpoint_files import files_of
from holdfast.locations.coordination.checkpoints import complete_checkpoint
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
    """Copy a checkpoint or savepoint with all files that it leads to, verified, into a savepoint.

    The copy is a directory that holds everything itself, made as every savepoint is: it exists once
    its `_metadata` does, which is published last. If anything fails before, nothing is left.

    Args:
        checkpoint: The checkpoint to copy.
        target: URI of the directory to make the savepoint in, of any store.
        also: Files that its coordinator states lead to.
        coordinator_states: Makes new coordinator states, from the copies by the URI of the original, and the
            URI of the new directory.
        on_bytes: Called again and again with the number of bytes copied since the last call; from several threads.

    Raises:
        CheckpointNotFoundError: A file is gone.
        CheckpointCorruptedError: A file is damaged.
        StorageUnavailableError: Something could not be read or written.
        InvalidRequestError: That can't be a directory of savepoints.
        OutcomeUnknownError: The store did not say whether the copy was completed.
    """
    metadata = checkpoint.metadata
    # What was in a file stays in one. The new directory's name is random: there is one writer.
    storage = FileSystemCheckpointStorage(
        uripath.text(target), inline_threshold=0, single_writer=True
    )
    access = storage.create_checkpoint_storage(metadata.job_id)
    location = access.initialize_location_for_savepoint(metadata.checkpoint_id, target)
    with disposed_on_failure(location):
        copied, copies = with_copies(
            metadata,
            lambda file: stored(file.open_input_stream, location, on_bytes=on_bytes),
            also=also,
        )
        if coordinator_states is not None:
            states = coordinator_states(copies, location.external_pointer)
            copied = msgspec.structs.replace(copied, coordinator_states=states)
        copied = msgspec.structs.replace(copied, commit_token=new_commit_token(), epoch=0)
        return complete_checkpoint(location, copied)


def stored(
    opens: Callable[[], BinaryIO],
    location: CheckpointStorageLocation,
    *,
    scope: CheckpointedStateScope = CheckpointedStateScope.EXCLUSIVE,
    on_bytes: Callable[[int], object] = lambda _: None,
) -> StreamStateHandle:
    """Copy bytes into a checkpoint or savepoint that is being made."""
    with (
        opens() as source,
        location.create_checkpoint_state_output_stream(scope) as target,
    ):
        for chunk in chunks(source):
            raise_if_cancelled()
            target.write(chunk)
            on_bytes(len(chunk))
        return target.close_and_get_handle() or ByteStreamStateHandle(b"")


def with_copies(
    metadata: CheckpointMetadata,
    copy: Callable[[FileStateHandle], StreamStateHandle],
    *,
    also: Iterable[StreamStateHandle] = (),
) -> tuple[CheckpointMetadata, dict[str, StreamStateHandle]]:
    """Metadata that leads to copies of all files of state, each copied once; and the copies by old URI.

    Args:
        metadata: The metadata that leads to the files.
        copy: Copies a file.
        also: Further files to copy.
    """
    files = files_of([*metadata.streams(), *also])
    copied = dict(zip((file.uri for file in files), map_in_parallel(copy, files), strict=True))

    def change(handle: StreamStateHandle) -> StreamStateHandle:
        return copied[handle.uri] if isinstance(handle, FileStateHandle) else handle

    # A copy needs nothing of what the job has claimed, and must not delete it.
    return msgspec.structs.replace(metadata.with_streams(change), claimed=()), copied


@contextmanager
def disposed_on_failure(location: CheckpointStorageLocation) -> Iterator[None]:
    """Leave nothing of a checkpoint or savepoint that can't be completed, unless it may exist."""
    try:
        yield
    except OutcomeUnknownError:
        raise  # it may exist
    except BaseException:
        try:
            location.dispose_on_failure()
        except Exception:  # noqa: BLE001  # the user has to see why there is none
            _log.warning("could not clean up %s", location.external_pointer, exc_info=True)
        raise


def chunks(stream: BinaryIO) -> Iterator[bytes]:
    """The rest of a stream, at most a MiB at a time."""
    while chunk := stream.read(_CHUNK_BYTES):
        yield chunk
