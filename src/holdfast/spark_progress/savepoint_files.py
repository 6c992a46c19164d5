"""All files of a checkpoint, state of operators and files of Spark: listed, verified, copied."""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from os import PathLike

import msgspec

from holdfast.common import uripath
from holdfast.errors import CheckpointNotFoundError
from holdfast.locations.coordination import VerifiedFile, copy_checkpoint, is_gone, verify_files
from holdfast.locations.handles import FileStateHandle, StreamStateHandle, files_of
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark_progress.spark_files import SPARK_FILES, SparkFile, SparkFiles, spark_files_of


def all_streams(checkpoint: CompletedCheckpoint) -> list[StreamStateHandle]:
    """Return the handles to all bytes of a checkpoint: of operators and, in a savepoint, of Spark.

    Raises:
        CheckpointCorruptedError: The list of Spark's files can't be read.
    """
    streams = checkpoint.metadata.streams()
    if SPARK_FILES in checkpoint.metadata.coordinator_states:
        content = spark_files_of(checkpoint.metadata, checkpoint.location.external_pointer)
        streams += [file.handle for file in content.files]
    return streams


def directories_of(*checkpoints: CompletedCheckpoint) -> list[str]:
    """Return the URIs of all directories with files of these checkpoints, which may be in several stores.

    Raises:
        CheckpointCorruptedError: A list of Spark's files can't be read.
    """
    files = (file for checkpoint in checkpoints for file in files_of(all_streams(checkpoint)))
    return sorted({uripath.parent(file.uri) for file in files})


def verify_checkpoints(
    checkpoints: Sequence[CompletedCheckpoint],
    *,
    on_bytes: Callable[[int], object] = lambda _: None,
    on_gone: Callable[[CompletedCheckpoint], object] = lambda _: None,
    known: Container[tuple[str, int]] = (),
) -> Iterator[VerifiedFile]:
    """Read all files of checkpoints and verify their checksums; see `verify_files`.

    A file that a running job deletes in the meantime, with all checkpoints that refer to it, is left out. The
    `_metadata` of a checkpoint is verified when it is loaded.

    Args:
        checkpoints: The checkpoints.
        on_bytes: Called with each number of bytes read.
        on_gone: Called once for each checkpoint that was deleted in the meantime.
        known: URI and size of files to leave out because they were verified before.

    Raises:
        CheckpointCorruptedError: A list of Spark's files can't be read.
    """
    checkpoints_by_uri: dict[str, list[CompletedCheckpoint]] = {}
    streams: list[StreamStateHandle] = []
    for checkpoint in checkpoints:
        checkpoint_files = files_of(all_streams(checkpoint))
        files = [file for file in checkpoint_files if (file.uri, file.size) not in known]
        streams += files
        for file in files:
            checkpoints_by_uri.setdefault(file.uri, []).append(checkpoint)
    gone: set[str] = set()
    for verified in verify_files(streams, on_bytes=on_bytes):
        if not isinstance(verified.failure, CheckpointNotFoundError):
            yield verified
            continue
        for checkpoint in checkpoints_by_uri[verified.uri]:
            pointer = checkpoint.location.external_pointer
            if pointer not in gone and is_gone(checkpoint):
                gone.add(pointer)
                on_gone(checkpoint)
        pointers = [each.location.external_pointer for each in checkpoints_by_uri[verified.uri]]
        if not all(pointer in gone for pointer in pointers):
            yield verified


def copy_savepoint(
    checkpoint: CompletedCheckpoint,
    target: str | PathLike[str],
    *,
    on_bytes: Callable[[int], object] = lambda _: None,
) -> CompletedCheckpoint:
    """Copy a checkpoint or savepoint, with Spark's files if it has any; see `copy_checkpoint`.

    Args:
        checkpoint: The checkpoint to copy.
        target: URI of a directory for savepoints, in any store.
        on_bytes: Called with each number of bytes copied, from several threads.

    Returns:
        The copy. `restore_savepoint` takes it like the savepoint that was copied.

    Raises:
        CheckpointNotFoundError: A file is missing. After this error and the next three no files are left.
        CheckpointCorruptedError: A file is corrupt.
        StorageUnavailableError: A file could not be read or written.
        InvalidRequestError: The target is not valid as a directory of savepoints.
        OutcomeUnknownError: It is not known whether the copy was completed.
    """
    metadata = checkpoint.metadata
    if SPARK_FILES not in metadata.coordinator_states:
        return copy_checkpoint(checkpoint, target, on_bytes=on_bytes)
    content = spark_files_of(metadata, checkpoint.location.external_pointer)

    def encode_states(copies: Mapping[str, StreamStateHandle], directory: str) -> dict[str, bytes]:
        origins = {
            origin: copy.uri
            for origin, uri in content.state_origins.items()
            if isinstance(copy := copies.get(uri), FileStateHandle)
        }
        copied = msgspec.structs.replace(with_copied_files(content, copies), state_origins=origins)
        return metadata.coordinator_states | {SPARK_FILES: copied.encode(directory)}

    return copy_checkpoint(
        checkpoint,
        target,
        also=[file.handle for file in content.files],
        coordinator_states=encode_states,
        on_bytes=on_bytes,
    )


def with_copied_files(content: SparkFiles, copies: Mapping[str, StreamStateHandle]) -> SparkFiles:
    """Return Spark's files with handles to their copies, which are given by the URI of the original."""

    def copy_of(file: SparkFile) -> SparkFile:
        if not isinstance(file.handle, FileStateHandle):
            return file
        return SparkFile(file.path, copies[file.handle.uri])

    return msgspec.structs.replace(content, files=tuple(map(copy_of, content.files)))
