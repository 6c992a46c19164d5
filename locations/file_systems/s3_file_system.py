"""`s3://` and `s3a://`: objects as files, published by conditional PUT."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, cast

from holdfast.common import collect_failures, raise_first, uripath
from holdfast.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageFullError,
    StorageUnavailableError,
)
from holdfast.locations.file_systems.port import FileOutputStream, FileStatus, PendingUpload
from holdfast.locations.file_systems.retrying import Retrier, RetryPolicy
from holdfast.locations.file_systems.s3_client import S3Settings, connection_for
from holdfast.locations.file_systems.s3_object import (
    S3Object,
    checksum_of,
    code_of,
    error_for_code,
    map_errors,
    was_not_performed,
)
from holdfast.locations.file_systems.s3_streams import (
    S3InputStream,
    S3OutputStream,
    read_range,
)

_log = logging.getLogger(__name__)

_DELETED_AT_A_TIME = 1000  # S3's bound

# Error codes of stores that can't delete many objects in one request, or not without an MD5.
_ONE_BY_ONE = {"NotImplemented", "MissingContentMD5", "InvalidDigest"}


class S3Objects:
    """Files as the objects of a store with S3's protocol.

    S3 has no directories: preparing one does nothing, and a writer can always write. A file
    appears, and is durable, once it is committed. On a bucket with versioning, a deletion leaves a
    delete marker and the old version; use a lifecycle rule to remove them.

    Args:
        settings: How to reach it.
        retries: How long a failing part or batch is retried; whole calls are retried by
            `file_system_for`, as for every store.
    """

    range_requests = 64

    def __init__(self, settings: S3Settings, *, retries: RetryPolicy | None = None) -> None:
        self.settings = settings
        self._retrier = Retrier(retries or RetryPolicy())

    def prepare_directory(self, uri: str, /) -> None:
        self._object(uri)

    def create(self, uri: str, /) -> FileOutputStream:
        return S3OutputStream(self._object(uri))

    def open(self, uri: str, /) -> BinaryIO:
        return cast("BinaryIO", S3InputStream(self._object(uri)))

    def read_range(self, uri: str, start: int, end: int, /) -> memoryview:
        target = self._object(uri)
        obstore = target.obstore
        data = obstore.read_range(target.key, start, end) if obstore is not None else None
        return read_range(target, start, end) if data is None else data

    def list(self, uri: str, /) -> Iterable[FileStatus]:
        prefix = self._prefix(uri)
        entries = []
        for page in self._pages("list_objects_v2", uri, Delimiter="/"):
            for entry in page.get("CommonPrefixes", ()):
                name = entry["Prefix"].removeprefix(prefix).removesuffix("/")
                if name:  # empty for a key with two slashes, which no location refers to
                    entries.append(FileStatus(uripath.join(uri, name), 0, 0, is_directory=True))
            entries += [
                _status(uri, prefix, entry)
                for entry in page.get("Contents", ())
                if entry["Key"] != prefix  # a marker that some tools create for a directory
            ]
        return entries

    def delete(self, uris: Iterable[str], /) -> None:
        keys: dict[str, list[str]] = {}
        for uri in uris:
            target = self._object(uri)
            keys.setdefault(target.bucket, []).append(target.key)
        failures = [
            failure
            for bucket, inside in keys.items()
            for first in range(0, len(inside), _DELETED_AT_A_TIME)
            if (failure := self._delete(bucket, inside[first : first + _DELETED_AT_A_TIME]))
        ]
        raise_first(failures)

    def delete_empty_directory(self, uri: str, /) -> None:
        """Do nothing: S3 has no directories."""

    def delete_tree(self, uri: str, /) -> None:
        # First, so that no upload becomes an object later.
        self.abort_uploads(self.list_uploads(uri))
        bucket = self._object(uri).bucket
        for page in self._pages("list_objects_v2", uri):
            self.delete(f"s3://{bucket}/{entry['Key']}" for entry in page.get("Contents", ()))

    def list_uploads(self, uri: str, /) -> Iterable[PendingUpload]:
        prefix = self._prefix(uri)
        try:
            return [
                PendingUpload(
                    uri=uripath.join(uri, upload["Key"].removeprefix(prefix)),
                    upload_id=upload["UploadId"],
                    started_ms=int(upload["Initiated"].timestamp() * 1000),
                )
                for page in self._pages("list_multipart_uploads", uri)
                for upload in page.get("Uploads", ())
            ]
        except InvalidRequestError:  # listing uploads needs a separate permission
            _log.warning("uploads below %s can't be listed and may remain", uri, exc_info=True)
            return []

    def abort_uploads(self, uploads: Iterable[PendingUpload], /) -> None:
        raise_first(collect_failures(self._abort, uploads))

    def _abort(self, upload: PendingUpload) -> None:
        with suppress(CheckpointNotFoundError):
            self._object(upload.uri).request("abort_multipart_upload", UploadId=upload.upload_id)

    def _delete(self, bucket: str, keys: Sequence[str]) -> CheckpointError | None:
        """Delete up to a thousand objects in one request; returns a failure. Missing objects are not failures."""
        uri = f"s3://{bucket}"
        try:
            with map_errors(uri, "delete_objects"):
                answer = self._client.delete_objects(
                    Bucket=bucket,
                    Delete={"Objects": [{"Key": key} for key in keys], "Quiet": True},
                    **self.settings.request_parameters(),
                )
        except CheckpointError as error:
            if code_of(error) not in _ONE_BY_ONE:
                return error
            failures = collect_failures(self._delete_object, [f"{uri}/{key}" for key in keys])
            return failures[0] if failures else None
        failures = [
            error_for_code(
                refused.get("Code", ""),
                0,
                f"{uri}/{refused.get('Key', '')}",
                operation="DeleteObjects",
            )
            for refused in answer.get("Errors", ())
        ]
        real = [failure for failure in failures if not isinstance(failure, CheckpointNotFoundError)]
        # Retriable failures come first, so that the whole request is retried.
        real.sort(key=lambda failure: not isinstance(failure, StorageUnavailableError))
        return real[0] if real else None

    def _delete_object(self, uri: str) -> None:
        with suppress(CheckpointNotFoundError):
            self._object(uri).request("delete_object")

    def _pages(self, listing: str, uri: str, **parameters: str) -> Iterator[Any]:
        target = self._object(uri)
        with map_errors(uri, listing):
            yield from self._client.get_paginator(listing).paginate(
                Bucket=target.bucket,
                Prefix=self._prefix(uri),
                **parameters,
                **self.settings.request_parameters(),
            )

    @staticmethod
    def _prefix(uri: str) -> str:
        key = uripath.local_path(uri).lstrip("/").rstrip("/")
        return f"{key}/" if key else ""

    def _object(self, uri: str) -> S3Object:
        bucket = uri.partition("://")[2].partition("/")[0]
        if not bucket:
            raise InvalidRequestError(
                "location has no bucket; write s3://bucket/path", uri, kind="location"
            )
        key = uripath.local_path(uri).lstrip("/")
        return S3Object(self._client, self.settings, self._retrier, uri, bucket, key)

    @property
    def _client(self) -> Any:
        return connection_for(self.settings).client


class S3FileSystem(S3Objects):
    """Objects that can be published, by conditional PUT, and copied by the store, up to 5 GiB."""

    def copy(self, source: str, uri: str, /) -> None:
        copied = self._object(source)
        self._object(uri).request(
            "copy_object",
            CopySource={"Bucket": copied.bucket, "Key": copied.key},
            **self.settings.write_parameters(),
        )

    def publish(self, uri: str, data: bytes, /) -> None:
        target = self._object(uri)
        try:
            target.request(
                "put_object",
                Body=data,
                IfNoneMatch="*",
                **checksum_of(data, self.settings),
                **self.settings.write_parameters(),
            )
        except StorageFullError:
            raise
        except StorageUnavailableError as error:
            if was_not_performed(error):
                raise
            message = "S3 did not confirm whether the file was written"
            raise OutcomeUnknownError(message, uri) from error


def _status(uri: str, prefix: str, entry: Any) -> FileStatus:
    return FileStatus(
        uri=uripath.join(uri, entry["Key"].removeprefix(prefix)),
        size=int(entry["Size"]),
        modified_ms=int(entry["LastModified"].timestamp() * 1000),
        is_directory=False,
    )
