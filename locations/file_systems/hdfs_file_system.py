"""`hdfs://` and `viewfs://`: files are published by a rename that refuses to overwrite."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import BinaryIO, cast

from holdfast.common import collect_failures, raise_first, uripath
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageUnavailableError,
)
from holdfast.locations.file_systems.hdfs_client import (
    HdfsClient,
    HdfsPatience,
    client_for,
    java_class,
    map_errors,
    options_of,
    was_refused,
)
from holdfast.locations.file_systems.hdfs_streams import HdfsInputStream, HdfsOutputStream
from holdfast.locations.file_systems.port import FileOutputStream, FileStatus
from holdfast.locations.file_systems.retrying import (
    ABORT_DEADLINE_S,
    Retrier,
    RetryPolicy,
    retry_deadline,
)

_DIRECTORY_MODE = 0o700

_ONCE = Retrier(RetryPolicy(deadline_s=0))
"""For a stream that is retried as a whole."""


class HdfsFileSystem:
    """Hadoop's file system, on any cluster that a URI names.

    Only the owner may access directories and files. Deleted files are not recoverable, because only
    Hadoop's shell has a trash; a directory is deleted in one step.

    Args:
        options: Hadoop options that override its configuration files.
        retries: How long the start and end of a stream are retried; whole calls are retried by
            `file_system_for`, as for every store.
        patience: Timeouts of single calls and writes.
    """

    def __init__(
        self,
        options: Mapping[str, str] | None = None,
        *,
        retries: RetryPolicy | None = None,
        patience: HdfsPatience | None = None,
    ) -> None:
        self._options = options_of(options or {})
        self._patience = patience or HdfsPatience()
        self._retrier = Retrier(retries or RetryPolicy())

    def prepare_directory(self, uri: str, /) -> None:
        path = uripath.local_path(uri)
        try:
            with map_errors(uri):
                self._client(uri).run(
                    lambda raw: raw.mkdirs(path, _DIRECTORY_MODE, create_parent=True)
                )
        except CheckpointConflictError as error:
            message = "can't create directory: a file has its name"
            raise InvalidRequestError(message, uri, kind="location") from error

    def create(self, uri: str, /) -> FileOutputStream:
        return HdfsOutputStream(
            uri,
            uripath.local_path(uri),
            calls=self._client(uri),
            stream=client_for(uri, self._options, self._patience, for_streams=True),
            retrier=self._retrier,
            cleanup=self._retrier,
        )

    def publish(self, uri: str, data: bytes, /) -> None:
        in_progress = uripath.join(uripath.parent(uri), uripath.hidden_name(uripath.name(uri)))
        client = self._client(uri)
        stream = HdfsOutputStream(
            uri,
            uripath.local_path(in_progress),
            calls=client,
            stream=client,
            retrier=_ONCE,
            cleanup=self._retrier,
        )
        try:
            stream.write(data)
            stream.commit()
        except BaseException:
            stream.abort()
            raise
        try:
            self._rename(in_progress, uri)
        except BaseException:
            # Retried: after a failed call, hdfs-native reuses the lost connection for the next one for a moment.
            with suppress(CheckpointError), retry_deadline(ABORT_DEADLINE_S):
                self._retrier.call("delete", lambda: self._delete(in_progress))
            raise

    def open(self, uri: str, /) -> BinaryIO:
        with map_errors(uri):
            reader = self._client(uri).run(lambda raw: raw.read(uripath.local_path(uri)))
        return cast("BinaryIO", HdfsInputStream(reader, uri))

    def list(self, uri: str, /) -> Iterable[FileStatus]:
        path = uripath.local_path(uri)
        with map_errors(uri), suppress(FileNotFoundError, NotADirectoryError):
            return [
                FileStatus(
                    uri=uripath.join(uri, entry.path.rpartition("/")[2]),
                    size=entry.length,
                    modified_ms=entry.modification_time,
                    is_directory=entry.isdir,
                )
                for entry in self._client(uri).run(lambda raw: list(raw.list_status(path)))
                if entry.path.rstrip("/") != path.rstrip("/")  # of a file: itself
            ]
        return []

    def delete(self, uris: Iterable[str], /) -> None:
        raise_first(collect_failures(self._delete, uris))

    def delete_empty_directory(self, uri: str, /) -> None:
        try:
            self._delete(uri)
        except CheckpointError as error:
            if java_class(error.__cause__) != "PathIsNotEmptyDirectoryException":
                raise

    def delete_tree(self, uri: str, /) -> None:
        self._delete(uri, recursive=True)

    def _delete(self, uri: str, *, recursive: bool = False) -> None:
        path = uripath.local_path(uri)
        with suppress(CheckpointNotFoundError), map_errors(uri):
            self._client(uri).run(lambda raw: raw.delete(path, recursive))

    def _client(self, uri: str) -> HdfsClient:
        return client_for(uri, self._options, self._patience)

    def _rename(self, source: str, target: str) -> None:
        paths = (uripath.local_path(source), uripath.local_path(target))
        try:
            with map_errors(target):
                self._client(target).run(lambda raw: raw.rename(*paths, overwrite=False))
        except StorageUnavailableError as error:
            if "must both be directories" in str(error.__cause__):
                raise CheckpointConflictError.exists(target, "directory of that name") from error
            if was_refused(error):
                raise
            message = "HDFS did not confirm whether the file was renamed"
            raise OutcomeUnknownError(message, target) from error
