"""`s3://` and `s3a://`: objects as files, published by conditional PUT."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, cast

from holdfast.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageUnavailableError,
)
from holdfast.locations import _uris
from holdfast.locations.file_systems._port import FileOutputStream, FileStatus, PendingUpload
from holdfast.locations.file_systems._retries import Retrier, RetryPolicy
from holdfast.locations.file_systems._s3._client import client_for
from holdfast.locations.file_systems._s3._errors import error_for_code, translated, was_never_sent
from holdfast.locations.file_systems._s3._input_stream import S3InputStream
from holdfast.locations.file_systems._s3._output_stream import (
    S3Object,
    S3OutputStream,
    checksum_of,
)
from holdfast.locations.file_systems._s3._settings import S3Settings

_DELETED_AT_A_TIME = 1000  # S3's bound


class S3FileSystem:
    """A store that speaks S3's protocol.

    There are no directories: preparing one does nothing, and a writer can always write. A file
    appears when it is committed, and lasts then. On a bucket with versions a deletion leaves a
    delete marker and the old version behind it; a lifecycle rule has to remove those.

    Args:
        settings: How to reach it.
        retries: When a part or a batch that fails is given up; whole calls are repeated by
            `file_system_for`, as for every store.
    """

    def __init__(self, settings: S3Settings, *, retries: RetryPolicy | None = None) -> None:
        self.settings = settings
        self._retrier = Retrier(retries or RetryPolicy())

    def prepare_directory(self, uri: str, /) -> None:
        self._object(uri)

    def create(self, uri: str, /) -> FileOutputStream:
        return S3OutputStream(self._object(uri))

    def publish(self, uri: str, data: bytes, /) -> None:
        target = self._object(uri)
        try:
            target.request(
                "put_object",
                Body=data,
                IfNoneMatch="*",
                **checksum_of(data, self.settings),
                **self.settings.for_writing(),
            )
        except StorageUnavailableError as error:
            if was_never_sent(error.__cause__) or _was_turned_away(error.__cause__):
                raise
            message = "S3 did not say whether the file was written"
            raise OutcomeUnknownError(message, uri) from error

    def open(self, uri: str, /) -> BinaryIO:
        return cast("BinaryIO", S3InputStream(self._object(uri)))

    def list(self, uri: str, /) -> Iterable[FileStatus]:
        prefix = self._prefix(uri)
        found = []
        for page in self._pages(uri, Delimiter="/"):
            for entry in page.get("CommonPrefixes", ()):
                name = entry["Prefix"].removeprefix(prefix).rstrip("/")
                found.append(FileStatus(_uris.join(uri, name), 0, 0, is_directory=True))
            found += [
                _status(uri, prefix, entry)
                for entry in page.get("Contents", ())
                if entry["Key"] != prefix  # the marker that some tools make of a directory
            ]
        return found

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
        if failures:
            raise failures[0]

    def delete_empty_directory(self, uri: str, /) -> None:
        """Nothing to delete: there are none."""

    def delete_tree(self, uri: str, /) -> None:
        bucket = self._object(uri).bucket
        for page in self._pages(uri):
            self.delete(f"s3://{bucket}/{entry['Key']}" for entry in page.get("Contents", ()))
        self.abort_uploads(self.list_uploads(uri))

    def list_uploads(self, uri: str, /) -> Iterable[PendingUpload]:
        target = self._object(uri)
        prefix = self._prefix(uri)
        with translated(uri):
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=target.bucket, Prefix=prefix, **self.settings.for_all()
            )
            return [
                PendingUpload(
                    uri=_uris.join(uri, one["Key"].removeprefix(prefix)),
                    upload_id=one["UploadId"],
                    started_ms=int(one["Initiated"].timestamp() * 1000),
                )
                for page in pages
                for one in page.get("Uploads", ())
            ]

    def abort_uploads(self, uploads: Iterable[PendingUpload], /) -> None:
        failures = []
        for upload in uploads:
            try:
                self._object(upload.uri).request(
                    "abort_multipart_upload", UploadId=upload.upload_id, **self.settings.for_all()
                )
            except CheckpointNotFoundError:
                continue
            except CheckpointError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _delete(self, bucket: str, keys: Sequence[str]) -> CheckpointError | None:
        """Delete up to a thousand objects; only those that failed are tried again."""
        left = [*keys]

        def attempt() -> None:
            with translated(f"s3://{bucket}"):
                answer = self._client.delete_objects(
                    Bucket=bucket,
                    Delete={"Objects": [{"Key": key} for key in left], "Quiet": True},
                    **self.settings.for_all(),
                )
            failed = {one["Key"]: one.get("Code", "") for one in answer.get("Errors", ())}
            left[:] = [key for key in left if key in failed]
            if left:
                raise error_for_code(failed[left[0]], 0, f"s3://{bucket}/{left[0]}")

        try:
            self._retrier.call("delete_objects", attempt)
        except CheckpointError as error:
            return error
        return None

    def _pages(self, uri: str, **parameters: str) -> Iterator[Any]:
        target = self._object(uri)
        with translated(uri):
            yield from self._client.get_paginator("list_objects_v2").paginate(
                Bucket=target.bucket,
                Prefix=self._prefix(uri),
                **parameters,
                **self.settings.for_all(),
            )

    @staticmethod
    def _prefix(uri: str) -> str:
        key = _uris.local_path(uri).lstrip("/").rstrip("/")
        return f"{key}/" if key else ""

    def _object(self, uri: str) -> S3Object:
        bucket = uri.partition("://")[2].partition("/")[0]
        if not bucket:
            raise InvalidRequestError("location names no bucket; write s3://bucket/path", uri)
        key = _uris.local_path(uri).lstrip("/")
        return S3Object(self._client, self.settings, self._retrier, uri, bucket, key)

    @property
    def _client(self) -> Any:
        return client_for(self.settings)


def _status(uri: str, prefix: str, entry: Any) -> FileStatus:
    return FileStatus(
        uri=_uris.join(uri, entry["Key"].removeprefix(prefix)),
        size=int(entry["Size"]),
        modified_ms=int(entry["LastModified"].timestamp() * 1000),
        is_directory=False,
    )


def _was_turned_away(error: BaseException | None) -> bool:
    """Whether the store has said that it did not do it."""
    answer = getattr(error, "response", None) or {}
    return answer.get("Error", {}).get("Code") in {
        "SlowDown",
        "ConditionalRequestConflict",
        "OperationAborted",
        "RequestTimeout",
        "BadDigest",
        "IncompleteBody",
        "Throttling",
    }
