"""All files of a checkpoint: state of operators and, in a savepoint, files of Spark; listed, verified, copied, compared.

The list of Spark's files is MessagePack in `_metadata`, under the coordinator state `spark-files`:

{"is_committed": bool, "settings": {str: str}, "files": [[path, handle], …], "state_origins": {URI: URI}}
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike

import msgspec

from holdfast.common import message_pack_decoder, uripath
from holdfast.errors import CheckpointCorruptedError, CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.coordination import (
    VerifiedFile,
    copy_checkpoint,
    hold_checkpoint,
    is_gone,
    verify_files,
)
from holdfast.locations.handles import (
    FileStateHandle,
    StreamStateHandle,
    files_of,
    is_inside,
    without_place,
)
from holdfast.locations.metadata import CheckpointMetadata, absolute_uri, relative_uri
from holdfast.locations.storages import CompletedCheckpoint, is_state_file
from holdfast.redaction import redact

SPARK_FILES = "spark-files"


class SparkFile(msgspec.Struct, frozen=True):
    """A file of a checkpointLocation.

    Attributes:
        path: Original path, relative to the checkpointLocation.
        handle: Handle to the copy.
    """

    path: str
    handle: StreamStateHandle


class SparkFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Spark files and settings that a query needs to resume.

    Attributes:
        is_committed: Whether Spark's commit log has the batch.
        settings: Spark settings that the files depend on and that Spark does not record itself.
        files: The files.
        state_origins: URIs of copies of Holdfast's state files, by the URI of the original.
    """

    is_committed: bool
    settings: dict[str, str]
    files: tuple[SparkFile, ...]
    state_origins: dict[str, str] = {}

    def encode(self, directory: str) -> bytes:
        """Encode for the `_metadata` of a directory; URIs below that directory become relative."""
        return msgspec.msgpack.encode(self._with_uris(lambda uri: relative_uri(uri, directory)))

    def _with_uris(self, change: Callable[[str], str]) -> "SparkFiles":
        files = tuple(SparkFile(file.path, _with_uri(file.handle, change)) for file in self.files)
        origins = {origin: change(uri) for origin, uri in self.state_origins.items()}
        return msgspec.structs.replace(self, files=files, state_origins=origins)


_DECODER = message_pack_decoder(SparkFiles)


def spark_files_of(metadata: CheckpointMetadata, directory: str) -> SparkFiles:
    """Decode Spark's files of the savepoint in a directory.

    Raises:
        InvalidRequestError: The checkpoint is not a savepoint of a query.
        CheckpointCorruptedError: The list of files can't be read, or has a file outside of the savepoint, or one that
            would be restored outside of the checkpointLocation.
    """
    encoded = metadata.coordinator_states.get(SPARK_FILES)
    if encoded is None:
        message = "not a savepoint of a query; take_savepoint makes one"
        raise InvalidRequestError(message, directory, kind="not-a-savepoint")
    try:
        decoded = _DECODER.decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"list of Spark's files in the savepoint can't be decoded ({error})"
        raise CheckpointCorruptedError(message, directory) from error
    spark_files = decoded._with_uris(lambda uri: absolute_uri(uri, directory))  # noqa: SLF001  # the same class
    for file in spark_files.files:
        if not uripath.is_path_below(file.path):
            message = f"savepoint has a file {file.path!a}, which is not a path below a checkpointLocation"
            raise CheckpointCorruptedError(message, directory)
        if isinstance(file.handle, FileStateHandle) and not (
            is_inside(file.handle, directory) or is_state_file(file.handle.uri)
        ):
            message = f"savepoint has a file {redact(file.handle.uri)!a} outside of its directory"
            raise CheckpointCorruptedError(message, directory)
    return spark_files


def _with_uri(handle: StreamStateHandle, change: Callable[[str], str]) -> StreamStateHandle:
    if isinstance(handle, FileStateHandle):
        return msgspec.structs.replace(handle, uri=change(handle.uri))
    return handle


@dataclass(frozen=True, slots=True)
class SparkFilesComparison:
    """The differences between Spark's files and settings in two savepoints.

    Attributes:
        is_committed: Whether the commit log has the batch, in each savepoint; None if both agree.
        settings: Settings that differ, by name: their values in each savepoint; None where one is not set.
        paths: Files that only one savepoint has, or whose content differs, sorted.
    """

    is_committed: tuple[bool, bool] | None
    settings: dict[str, tuple[str | None, str | None]]
    paths: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        """True if nothing differs."""
        return self.is_committed is None and not (self.settings or self.paths)


def compare_spark_files(first: SparkFiles, second: SparkFiles) -> SparkFilesComparison:
    """Compare Spark's files and settings in two savepoints, without reading the files."""
    old, new = _contents(first), _contents(second)
    return SparkFilesComparison(
        is_committed=(
            (first.is_committed, second.is_committed)
            if first.is_committed != second.is_committed
            else None
        ),
        settings={
            key: (first.settings.get(key), second.settings.get(key))
            for key in sorted(first.settings | second.settings)
            if first.settings.get(key) != second.settings.get(key)
        },
        paths=tuple(path for path in sorted(old | new) if old.get(path) != new.get(path)),
    )


def _contents(content: SparkFiles) -> dict[str, StreamStateHandle]:
    return {file.path: without_place(file.handle) for file in content.files}


def find_spark_files(checkpoint: CompletedCheckpoint) -> SparkFiles | None:
    """Return Spark's files in a savepoint of a query, or None. Raises `CheckpointCorruptedError`."""
    if SPARK_FILES not in checkpoint.metadata.coordinator_states:
        return None
    return spark_files_of(checkpoint.metadata, checkpoint.location.external_pointer)


def all_streams(checkpoint: CompletedCheckpoint) -> list[StreamStateHandle]:
    """Return the handles to all bytes of a checkpoint: of operators and, in a savepoint, of Spark.

    Raises:
        CheckpointCorruptedError: The list of Spark's files can't be read.
    """
    content = find_spark_files(checkpoint)
    files = content.files if content is not None else ()
    return [*checkpoint.metadata.streams(), *(file.handle for file in files)]


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
    with hold_checkpoint(checkpoint.location.external_pointer):
        return _copy_held(checkpoint, target, on_bytes)


def _copy_held(
    checkpoint: CompletedCheckpoint,
    target: str | PathLike[str],
    on_bytes: Callable[[int], object],
) -> CompletedCheckpoint:
    content = find_spark_files(checkpoint)
    if content is None:
        return copy_checkpoint(checkpoint, target, on_bytes=on_bytes)

    def encode_states(copies: Mapping[str, StreamStateHandle], directory: str) -> dict[str, bytes]:
        origins = {
            origin: copy.uri
            for origin, uri in content.state_origins.items()
            if isinstance(copy := copies.get(uri), FileStateHandle)
        }
        copied = msgspec.structs.replace(with_copied_files(content, copies), state_origins=origins)
        return checkpoint.metadata.coordinator_states | {SPARK_FILES: copied.encode(directory)}

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
