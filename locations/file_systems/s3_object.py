"""An object in S3, requests to it, and the translation of their errors in one table."""

import base64
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from holdfast.common import crc32c
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageFullError,
    StorageUnavailableError,
)
from holdfast.locations.file_systems.obstore_bucket import ObstoreBucket, obstore_for
from holdfast.locations.file_systems.port import BytesLike
from holdfast.locations.file_systems.retrying import Retrier
from holdfast.locations.file_systems.s3_client import S3Settings

OWNER_METADATA = "holdfast-owner"
"""Name of the metadata that identifies the writer of an object."""

ALGORITHMS = {"crc32c": "CRC32C", "crc32": "CRC32"}
_SUMS: dict[str, Callable[[Any], int]] = {"crc32c": crc32c, "crc32": crc32}


@dataclass(frozen=True, slots=True)
class S3Object:
    """The address of an object, with the client and settings for requests to it."""

    client: Any
    settings: S3Settings
    retrier: Retrier
    uri: str
    bucket: str
    key: str

    def request(self, name: str, **parameters: Any) -> Any:
        """Send one request for the object. Raises Holdfast errors."""
        with map_errors(self.uri, name):
            return getattr(self.client, name)(
                Bucket=self.bucket, Key=self.key, **parameters, **self.settings.request_parameters()
            )

    def request_with_retries(self, name: str, **parameters: Any) -> Any:
        """Send a request, and retry it while it fails without a change or is repeatable."""
        return self.retrier.call(name, lambda: self.request(name, **parameters))

    @property
    def obstore(self) -> ObstoreBucket | None:
        """The bucket through obstore, if it is usable."""
        return obstore_for(self.settings, self.bucket)

    def create(
        self, name: str, token: str, *, may_be_there: bool = False, **parameters: Any
    ) -> None:
        """Send a request that creates the object if its name is free.

        Args:
            name: The request.
            token: A token for the object's metadata, which later identifies the object as ours.
            may_be_there: Whether the request was sent before with an unknown outcome.
            parameters: The parameters of the request.

        Raises:
            CheckpointConflictError: The name is taken.
            OutcomeUnknownError: S3 did not confirm whether it was created.
        """

        def unknown() -> OutcomeUnknownError:
            return OutcomeUnknownError("S3 did not confirm whether the file was written", self.uri)

        def attempt() -> None:
            try:
                self.request(name, IfNoneMatch="*", **parameters)
            except StorageFullError:
                raise
            except StorageUnavailableError as error:
                if was_not_performed(error):
                    raise
                raise unknown() from error

        self.retrier.create(
            name,
            attempt,
            lambda: self.version_of(token) is not None,
            unknown=unknown() if may_be_there else None,
        )

    def version_of(self, token: str) -> str | None:
        """Return the object's ETag if the stream with this token created it."""
        try:
            head = self.request("head_object")
        except CheckpointNotFoundError:
            return None
        is_ours = head.get("Metadata", {}).get(OWNER_METADATA) == token
        return str(head["ETag"]) if is_ours else None


def checksum_of(data: BytesLike, settings: S3Settings) -> dict[str, str]:
    """Return the parameter that the store verifies a body with."""
    if settings.checksum == "off":
        return {}
    total = _SUMS[settings.checksum](data)
    encoded = base64.b64encode(struct.pack(">I", total)).decode()
    return {f"Checksum{ALGORITHMS[settings.checksum]}": encoded}


_MISSING = {"NoSuchKey", "NoSuchUpload", "404", "NotFound"}
_CONFLICTS = {"PreconditionFailed", "412"}
_FULL = {"QuotaExceeded", "InsufficientCapacity"}

# Client errors by their status, but a second attempt may succeed.
_TRANSIENT = {
    "RequestTimeout",
    "RequestTimeTooSkewed",
    "ConditionalRequestConflict",
    "OperationAborted",
    "SlowDown",
    "RequestLimitExceeded",
    "TooManyRequests",
    "IncompleteBody",
    "BadDigest",
    "XAmzContentChecksumMismatch",
    # Codes of single keys in an answer about many, which has no status per key.
    "InternalError",
    "ServiceUnavailable",
    "Busy",
}

# Errors before a request was sent, so that it was certainly not performed.
_NEVER_SENT = {
    "ConnectTimeoutError",
    "EndpointConnectionError",
    "ProxyConnectionError",
}

_UNAUTHORIZED = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "TokenRetrievalError",
}


@contextmanager
def map_errors(uri: str, request: str) -> Iterator[None]:
    """Translate errors of botocore; `request` is its method, such as `put_object`."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415  # optional

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise error_for(error, uri, request) from error


def error_for(error: Exception, uri: str, request: str) -> CheckpointError:
    """Return the Holdfast error for a botocore error; its text contains no secrets."""
    operation = request.title().replace("_", "")
    answer = getattr(error, "response", None)
    if answer is None:
        return _without_answer(error, uri, operation)
    code = str(answer.get("Error", {}).get("Code", ""))
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return error_for_code(code, status, uri, operation=operation)


def error_for_code(code: str, status: int, uri: str, *, operation: str) -> CheckpointError:
    """Return the Holdfast error for an S3 error code.

    Args:
        code: S3's error code.
        status: HTTP status; 0 if unknown.
        uri: URI of the object or bucket.
        operation: S3's name of the operation, such as `PutObject`.
    """
    answer = ", ".join(dict.fromkeys(filter(None, (code, str(status or ""))))) or "no code"
    if code in _MISSING:
        return CheckpointNotFoundError("no such object", uri)
    if code in _CONFLICTS:
        return CheckpointConflictError.exists(uri)
    if code in _FULL or status == 507:
        return StorageFullError(f"store has no space left ({code})", uri)
    if code == "NoSuchBucket":
        return InvalidRequestError("bucket does not exist; create it first", uri, kind="no-bucket")
    if status == 501 or code == "NotImplemented":
        return InvalidRequestError(
            f"store does not support {operation} ({answer})", uri, kind="location"
        )
    if status >= 500 or status in (408, 429) or code in _TRANSIENT or "Throttl" in code:
        return StorageUnavailableError(f"S3 failed to perform {operation} ({answer})", uri)
    if status in (301, 307, 400, 401, 403, 405, 411, 416) or code:
        message = f"S3 refused {operation} ({answer}); check credentials, permissions, region"
        return InvalidRequestError(message, uri, kind="refused")
    return StorageUnavailableError(f"S3 failed to perform {operation} ({answer})", uri)


def was_not_performed(error: CheckpointError) -> bool:
    """Return whether a request was certainly not performed: never sent, or rejected."""
    cause = error.__cause__
    answer = getattr(cause, "response", None)
    if answer is None:
        return type(cause).__name__ in _NEVER_SENT
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return 400 <= status < 500 or answer.get("Error", {}).get("Code") == "SlowDown"


def code_of(error: CheckpointError) -> str:
    """Return S3's code of a failure, or an empty string."""
    answer = getattr(error.__cause__, "response", None) or {}
    return str(answer.get("Error", {}).get("Code", ""))


def _without_answer(error: Exception, uri: str, operation: str) -> CheckpointError:
    name = type(error).__name__
    if name in _UNAUTHORIZED:
        return InvalidRequestError(f"no credentials for S3 ({name})", uri, kind="refused")
    if name == "SSLError" and "CERTIFICATE_VERIFY_FAILED" in str(error):
        message = "S3's certificate is not trusted; set its authority's file (s3.ca-bundle)"
        return InvalidRequestError(message, uri, kind="connection")
    if name == "SSLError" and "WRONG_VERSION_NUMBER" in str(error):
        message = "endpoint does not support TLS; use http://"
        return InvalidRequestError(message, uri, kind="connection")
    if name in ("ParamValidationError", "InvalidRegionError", "UnknownServiceError"):
        return InvalidRequestError(
            f"S3 request is not valid ({operation}: {name})", uri, kind="setting"
        )
    return StorageUnavailableError(f"S3 did not answer {operation} ({name})", uri)
