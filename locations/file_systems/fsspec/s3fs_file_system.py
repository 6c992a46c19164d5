"""`fsspec+s3://`: objects as files, through s3fs; for a single writer."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from holdfast.errors import CheckpointConflictError, CheckpointNotFoundError
from holdfast.locations.file_systems.fsspec.s3fs_client import s3fs_client_for
from holdfast.locations.file_systems.port import FileOutputStream, FileStatus, PendingUpload
from holdfast.locations.file_systems.retrying import RetryPolicy
from holdfast.locations.file_systems.s3 import S3FileSystem, S3OutputStream, S3Settings

_DEFAULT_POLICY = RetryPolicy()


@dataclass(frozen=True, slots=True)
class S3fsFileSystem:
    """A store with S3's protocol, reached through s3fs instead of boto3.

    Like `S3FileSystem` it commits a file in one step and deletes an aborted one. But it sends no
    conditions, which some stores reject: it checks that a name is free before it writes, and does
    not offer `publish`. s3fs's own files and listings are not used, because s3fs leaves a truncated
    file after a failed write and caches listings.

    Args:
        settings: How to reach it.
        retries: How long a failing part or batch is retried; whole calls are retried by
            `file_system_for`, as for every store.
    """

    settings: S3Settings
    retries: RetryPolicy = _DEFAULT_POLICY

    def prepare_directory(self, uri: str, /) -> None:
        self._objects.prepare_directory(uri)

    def create(self, uri: str, /) -> FileOutputStream:
        return self._objects.create(uri)

    def open(self, uri: str, /) -> BinaryIO:
        return self._objects.open(uri)

    def list(self, uri: str, /) -> Iterable[FileStatus]:
        return self._objects.list(uri)

    def delete(self, uris: Iterable[str], /) -> None:
        self._objects.delete(uris)

    def delete_empty_directory(self, uri: str, /) -> None:
        self._objects.delete_empty_directory(uri)

    def delete_tree(self, uri: str, /) -> None:
        self._objects.delete_tree(uri)

    def list_uploads(self, uri: str, /) -> Iterable[PendingUpload]:
        return self._objects.list_uploads(uri)

    def abort_uploads(self, uploads: Iterable[PendingUpload], /) -> None:
        self._objects.abort_uploads(uploads)

    @property
    def _objects(self) -> S3FileSystem:
        return _Objects(replace(self.settings, state_files="boto3"), retries=self.retries)


class _Objects(S3FileSystem):
    """The adapter of `s3://` on top of s3fs."""

    def create(self, uri: str, /) -> FileOutputStream:
        return _LookingStream(self._object(uri))

    @property
    def _client(self) -> Any:
        return s3fs_client_for(self.settings)


class _LookingStream(S3OutputStream):
    """Checks that the name is free, where its base class sends a condition."""

    def commit(self, *, durable_name: bool = True) -> None:
        self._check_unfinished()
        if self._is_taken():
            self.abort()
            raise CheckpointConflictError.exists(self._target.uri)
        super().commit(durable_name=durable_name)

    def _is_taken(self) -> bool:
        try:
            self._target.request_with_retries("head_object")
        except CheckpointNotFoundError:
            return False
        except BaseException:
            self.abort()
            raise
        return True
