"""All streams that a checkpoint leads to: state of operators, and Spark's files."""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from os import PathLike

import msgspec

from holdfast.common import uripath
from holdfast.errors import CheckpointNotFoundError
from holdfast.locations.coordination import (
    VerifiedFile,
    copy_checkpoint,
    files_of,
    is_gone,
    verify_files,
)
from holdfast.locations.handles import FileStateHandle, StreamStateHandle
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark_progress.spark_files import SPARK_FILES, SparkFile, SparkFiles, spark_files_of


def all_streams(checkpoint: CompletedCheckpoint) -> list[StreamStateHandle]:
    """Every handle to bytes that a checkpoint needs: of operators and, in a savepoint, of Spark.

    Raises:
        CheckpointCorruptedError: The checkpoint's record of Spark's files can't be read.
    """
    streams = checkpoint.metadata.streams()
    if SPARK_FILES in checkpoint.metadata.coordinator_states:
        content = spark_files_of(checkpoint.metadata, checkpoint.location.external_pointer)
        streams += [file.handle for file in content.files]
    return streams


def directories_of(*checkpoints: CompletedCheckpoint) -> list[str]:
    """URIs of the directories that files of checkpoints are in, which may be in several stores.

    Raises:
        CheckpointCorruptedError: A checkpoint's record of Spark's files can't be read.
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
    """Read every byte of every file that checkpoints lead to; see `verify_files`.

    A file that a running job has deleted meanwhile, together with all checkpoints that lead to it, is
    left out. The `_metadata` of a checkpoint was verified when it was loaded.

    Args:
        checkpoints: The checkpoints.
        on_bytes: Called again and again with the number of bytes read since the last call.
        on_gone: Called once for each checkpoint that was deleted meanwhile.
        known: URI and size of files that were read before, and are not read again.

    Raises:
        CheckpointCorruptedError: A checkpoint's record of Spark's files can't be read.
    """
    leading: dict[str, list[CompletedCheckpoint]] = {}
    streams: list[StreamStateHandle] = []
    for checkpoint in checkpoints:
        of_checkpoint = all_streams(checkpoint)
        files = [file for file in files_of(of_checkpoint) if (file.uri, file.size) not in known]
        streams += files
        for file in files:
            leading.setdefault(file.uri, []).append(checkpoint)
    gone: set[str] = set()
    for verified in verify_files(streams, on_bytes=on_bytes):
        if not isinstance(verified.failure, CheckpointNotFoundError):
            yield verified
            continue
        for checkpoint in leading[verified.uri]:
            pointer = checkpoint.location.external_pointer
            if pointer not in gone and is_gone(checkpoint):
                gone.add(pointer)
                on_gone(checkpoint)
        pointers = [each.location.external_pointer for each in leading[verified.uri]]
        if not all(pointer in gone for pointer in pointers):
            yield verified


def copy_savepoint(
    checkpoint: CompletedCheckpoint,
    target: str | PathLike[str],
    *,
    on_bytes: Callable[[int], object] = lambda _: None,
) -> CompletedCheckpoint:
    """Copy a checkpoint or savepoint, with Spark's files if it has some; see `copy_checkpoint`.

    Args:
        checkpoint: The checkpoint to copy.
        target: URI of the directory to make the savepoint in, of any store.
        on_bytes: Called again and again with the number of bytes copied since the last call; from several threads.

    Returns:
        The copy. `restore_savepoint` takes it like the savepoint that was copied.

    Raises:
        CheckpointNotFoundError: A file is gone. Nothing is left behind, nor after the next three errors.
        CheckpointCorruptedError: A file is damaged.
        StorageUnavailableError: Something could not be read or written.
        InvalidRequestError: The target can't be a directory of savepoints.
        OutcomeUnknownError: The store did not say whether the copy was completed.
    """
    metadata = checkpoint.metadata
    if SPARK_FILES not in metadata.coordinator_states:
        return copy_checkpoint(checkpoint, target, on_bytes=on_bytes)
    content = spark_files_of(metadata, checkpoint.location.external_pointer)

    def encoded(copies: Mapping[str, StreamStateHandle], directory: str) -> dict[str, bytes]:
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
        coordinator_states=encoded,
        on_bytes=on_bytes,
    )


def with_copied_files(content: SparkFiles, copies: Mapping[str, StreamStateHandle]) -> SparkFiles:
    """Spark's files with handles to copies.

    Args:
        content: The files.
        copies: The copies, by the URI of what was copied.
    """

    def copied(file: SparkFile) -> SparkFile:
        if not isinstance(file.handle, FileStateHandle):
            return file
        return SparkFile(file.path, copies[file.handle.uri])

    return msgspec.structs.replace(content, files=tuple(map(copied, content.files)))
