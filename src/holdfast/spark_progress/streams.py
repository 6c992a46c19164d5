"""All that a checkpoint leads to: state of operators, and Spark's files."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike

import msgspec

from holdfast.common import uripath
from holdfast.errors import CheckpointError, CheckpointNotFoundError
from holdfast.locations.coordination import VerifiedFile, copy_checkpoint, files_of, verify
from holdfast.locations.handles import FileStateHandle, StreamStateHandle
from holdfast.locations.storages import CompletedCheckpoint, load_checkpoint
from holdfast.spark_progress.spark_files import SPARK_FILES, SparkFile, SparkFiles, spark_files_of


def all_streams(checkpoint: CompletedCheckpoint) -> list[StreamStateHandle]:
    """Every handle to bytes that it needs: of operators and, in a savepoint, of Spark.

    Raises:
        CheckpointCorruptedError: Spark's side of it can't be read.
    """
    streams = checkpoint.metadata.streams()
    if SPARK_FILES in checkpoint.metadata.coordinator_states:
        content = spark_files_of(checkpoint.metadata, checkpoint.location.external_pointer)
        streams += [one.handle for one in content.files]
    return streams


def directories_of(*checkpoints: CompletedCheckpoint) -> list[str]:
    """URIs of the directories that their files are in: some may be in other stores than they are.

    Raises:
        CheckpointCorruptedError: Spark's side of one can't be read.
    """
    files = (file for one in checkpoints for file in files_of(all_streams(one)))
    return sorted({uripath.parent(file.uri) for file in files})


def verify_checkpoints(
    checkpoints: Sequence[CompletedCheckpoint],
    *,
    on_bytes: Callable[[int], object] = lambda _: None,
    on_gone: Callable[[CompletedCheckpoint], object] = lambda _: None,
) -> Iterator[VerifiedFile]:
    """Read every byte of every file that checkpoints lead to; see `verify`.

    What a running job has deleted meanwhile, together with all of the checkpoints that lead to it,
    is left out. Their `_metadata` was verified when they were loaded.

    Args:
        checkpoints: The checkpoints.
        on_bytes: Told of every so many bytes more that are done.
        on_gone: Told, once, of each checkpoint that was found to be deleted meanwhile.

    Raises:
        CheckpointCorruptedError: Spark's side of one can't be read.
    """
    leading: dict[str, list[CompletedCheckpoint]] = {}
    streams: list[StreamStateHandle] = []
    for checkpoint in checkpoints:
        found = all_streams(checkpoint)
        streams += found
        for file in files_of(found):
            leading.setdefault(file.uri, []).append(checkpoint)
    gone: set[str] = set()
    for one in verify(streams, on_bytes=on_bytes):
        if not isinstance(one.failure, CheckpointNotFoundError):
            yield one
            continue
        for checkpoint in leading[one.uri]:
            pointer = checkpoint.location.external_pointer
            if pointer not in gone and _is_gone(checkpoint):
                gone.add(pointer)
                on_gone(checkpoint)
        if not all(each.location.external_pointer in gone for each in leading[one.uri]):
            yield one


def _is_gone(checkpoint: CompletedCheckpoint) -> bool:
    """Whether it was deleted since, as far as can be told: its `_metadata` goes first."""
    try:
        load_checkpoint(checkpoint.location)
    except CheckpointNotFoundError:
        return True
    except CheckpointError:
        return False
    return False


def copy_savepoint(
    checkpoint: CompletedCheckpoint,
    target: str | PathLike[str],
    *,
    on_bytes: Callable[[int], object] = lambda _: None,
) -> CompletedCheckpoint:
    """Copy a checkpoint or savepoint, with Spark's files if it has some; see `copy_checkpoint`.

    Args:
        checkpoint: What to copy.
        target: URI of the directory to make the savepoint in, of any store.
        on_bytes: Told of every so many bytes that were copied; from several threads.

    Returns:
        The copy. `restore_savepoint` takes it as it takes the savepoint that it was made of.

    Raises:
        CheckpointNotFoundError: A file is gone. As after the next three nothing is left behind.
        CheckpointCorruptedError: A file is damaged.
        StorageUnavailableError: Something could not be read or written.
        InvalidRequestError: That can't be a directory of savepoints.
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
        also=[one.handle for one in content.files],
        coordinator_states=encoded,
        on_bytes=on_bytes,
    )


def with_copied_files(content: SparkFiles, copies: Mapping[str, StreamStateHandle]) -> SparkFiles:
    """The same files in their copies, which are by the URI of what was copied."""

    def copied(one: SparkFile) -> SparkFile:
        if not isinstance(one.handle, FileStateHandle):
            return one
        return SparkFile(one.path, copies[one.handle.uri])

    return msgspec.structs.replace(content, files=tuple(map(copied, content.files)))
