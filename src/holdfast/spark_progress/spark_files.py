"""Spark's files in a savepoint: MessagePack in `_metadata`, under the coordinator state `spark-files`. Pure.

{"is_committed": bool, "settings": {str: str}, "files": [[path, handle], …], "state_origins": {URI: URI}}
"""

from collections.abc import Callable

import msgspec

from holdfast.common import message_pack_decoder, uripath
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError
from holdfast.locations.handles import FileStateHandle, StreamStateHandle, is_inside
from holdfast.locations.metadata import CheckpointMetadata, absolute_uri, relative_uri
from holdfast.locations.storages import is_state_file
from holdfast.redaction import redact

SPARK_FILES = "spark-files"


class SparkFile(msgspec.Struct, frozen=True):
    """A file of a checkpointLocation.

    Attributes:
        path: Where it was, relative to the checkpointLocation.
        handle: Leads to the bytes of its copy.
    """

    path: str
    handle: StreamStateHandle


class SparkFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files and settings of Spark that a query needs to go on.

    Attributes:
        is_committed: Whether Spark had noted that the batch is done.
        settings: Settings of Spark that the files go with, and that Spark doesn't note itself.
        files: The files.
        state_origins: URIs of copied files of Holdfast's state, by the URI of what was copied.
    """

    is_committed: bool
    settings: dict[str, str]
    files: tuple[SparkFile, ...]
    state_origins: dict[str, str] = {}

    def encode(self, directory: str) -> bytes:
        """The bytes for the `_metadata` of a directory; URIs below that directory become relative."""
        return msgspec.msgpack.encode(self._with_uris(lambda uri: relative_uri(uri, directory)))

    def _with_uris(self, change: Callable[[str], str]) -> "SparkFiles":
        files = tuple(SparkFile(file.path, _changed(file.handle, change)) for file in self.files)
        origins = {origin: change(uri) for origin, uri in self.state_origins.items()}
        return msgspec.structs.replace(self, files=files, state_origins=origins)


_DECODER = message_pack_decoder(SparkFiles)


def spark_files_of(metadata: CheckpointMetadata, directory: str) -> SparkFiles:
    """Spark's side of a savepoint in a directory.

    Raises:
        InvalidRequestError: The checkpoint is no savepoint of a query.
        CheckpointCorruptedError: The checkpoint's record of Spark's files can't be read, or names one
            outside of where a savepoint has files, or which would be restored outside of a checkpointLocation.
    """
    encoded = metadata.coordinator_states.get(SPARK_FILES)
    if encoded is None:
        message = "this is no savepoint of a query; take_savepoint makes one"
        raise InvalidRequestError(message, directory)
    try:
        decoded = _DECODER.decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"Spark's side of the savepoint can't be decoded ({error})"
        raise CheckpointCorruptedError(message, directory) from error
    spark_files = decoded._with_uris(lambda uri: absolute_uri(uri, directory))  # noqa: SLF001  # its own kind
    for file in spark_files.files:
        if not uripath.is_path_below(file.path):
            message = f"savepoint names a file {file.path!a}, which is not a path below a checkpointLocation"
            raise CheckpointCorruptedError(message, directory)
        if isinstance(file.handle, FileStateHandle) and not (
            is_inside(file.handle, directory) or is_state_file(file.handle.uri)
        ):
            message = f"savepoint names {redact(file.handle.uri)!a}, where it can't have a file"
            raise CheckpointCorruptedError(message, directory)
    return spark_files


def _changed(handle: StreamStateHandle, change: Callable[[str], str]) -> StreamStateHandle:
    if isinstance(handle, FileStateHandle):
        return msgspec.structs.replace(handle, uri=change(handle.uri))
    return handle
