"""`hdfs://` and `viewfs://`: files that are published by a rename that refuses to overwrite."""

import uuid
from collections.abc import Iterable
from contextlib import suppress
from typing import BinaryIO, cast

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageFullError,
    StorageUnavailableError,
)
from holdfast.locations import _uris
from holdfast.locations._tried import raise_first, tried
from holdfast.locations.file_systems._hdfs._client import client_for
from holdfast.locations.file_systems._hdfs._errors import java_class, translated, was_answered
from holdfast.locations.file_systems._hdfs._input_stream import HdfsInputStream
from holdfast.locations.file_systems._hdfs._output_stream import HdfsOutputStream
from holdfast.locations.file_systems._port import FileOutputStream, FileStatus

_DIRECTORY_MODE = 0o700


class HdfsFileSystem:
    """Hadoop's file system, at any cluster that a URI names.

    Directories and files are for their owner alone. What is deleted is gone: Hadoop's trash is the
    shell's, and a directory goes in one step.
    """

    def prepare_directory(self, uri: str, /) -> None:
        try:
            with translated(uri):
                client_for(uri).mkdirs(_uris.local_path(uri), _DIRECTORY_MODE, create_parent=True)
        except CheckpointConflictError as error:
            message = "a file stands where a directory is wanted"
            raise InvalidRequestError(message, uri) from error

    def create(self, uri: str, /) -> FileOutputStream:
        return HdfsOutputStream(client_for(uri), uri)

    def publish(self, uri: str, data: bytes, /) -> None:
        in_progress = _uris.join(
            _uris.parent(uri), f".{_uris.name(uri)}.{uuid.uuid4().hex}.inprogress"
        )
        stream = self.create(in_progress)
        try:
            stream.write(data)
            stream.commit()
            self._rename(in_progress, uri)
        except BaseException:
            stream.abort()
            self._remove(in_progress)
            raise

    def open(self, uri: str, /) -> BinaryIO:
        with translated(uri):
            reader = client_for(uri).read(_uris.local_path(uri))
        return cast("BinaryIO", HdfsInputStream(reader, uri))

    def list(self, uri: str, /) -> Iterable[FileStatus]:
        path = _uris.local_path(uri)
        with translated(uri), suppress(FileNotFoundError, NotADirectoryError):
            return [
                FileStatus(
                    uri=_uris.join(uri, entry.path.rpartition("/")[2]),
                    size=entry.length,
                    modified_ms=entry.modification_time,
                    is_directory=entry.isdir,
                )
                for entry in client_for(uri).list_status(path)
                if entry.path.rstrip("/") != path.rstrip("/")  # of a file: itself
            ]
        return []

    def delete(self, uris: Iterable[str], /) -> None:
        raise_first(tried(self._delete_file, uris))

    def delete_empty_directory(self, uri: str, /) -> None:
        try:
            self._delete(uri, recursive=False)
        except CheckpointError as error:
            if java_class(error.__cause__ or error) != "PathIsNotEmptyDirectoryException":
                raise

    def delete_tree(self, uri: str, /) -> None:
        self._delete(uri, recursive=True)

    def _delete_file(self, uri: str) -> None:
        self._delete(uri, recursive=False)

    @staticmethod
    def _delete(uri: str, *, recursive: bool) -> None:
        with suppress(CheckpointNotFoundError), translated(uri):
            client_for(uri).delete(_uris.local_path(uri), recursive)

    def _remove(self, uri: str) -> None:
        with suppress(CheckpointError):
            self._delete_file(uri)

    @staticmethod
    def _rename(source: str, target: str) -> None:
        try:
            with translated(target):
                client_for(target).rename(
                    _uris.local_path(source), _uris.local_path(target), overwrite=False
                )
        except (CheckpointConflictError, StorageFullError):
            raise
        except (StorageUnavailableError, CheckpointNotFoundError) as error:
            if isinstance(error, StorageUnavailableError) and was_answered(error):
                raise
            # The source is gone: an attempt before, whose answer was lost, has moved it.
            message = "HDFS did not say whether the file was renamed"
            raise OutcomeUnknownError(message, target) from error
