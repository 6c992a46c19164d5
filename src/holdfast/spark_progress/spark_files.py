"""Spark's files in a savepoint: MessagePack in `_metadata`, under the coordinator state `spark-files`. No I/O.

{"is_committed": bool, "settings": {str: str}, "files": [[path, handle], …], "state_origins": {URI: URI}}
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from holdfast.common import message_pack_decoder, uripath
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError
from holdfast.locations.handles import FileStateHandle, StreamStateHandle, is_inside, without_place
from holdfast.locations.metadata import CheckpointMetadata, absolute_uri, relative_uri
from holdfast.locations.storages import is_state_file
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
    """The files and settings of Spark that a query needs to resume.

    Attributes:
        is_committed: Whether Spark's commit log has the batch.
        settings: Settings of Spark that the files depend on and that Spark does not record itself.
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
        raise InvalidRequestError(message, directory)
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
