"""Translation of S3's errors, in one table."""

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    StorageFullError,
    StorageUnavailableError,
)

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
def map_errors(uri: str) -> Iterator[None]:
    """Translate errors of botocore."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415  # optional

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise error_for(error, uri) from error


def error_for(error: Exception, uri: str) -> CheckpointError:
    """Return the Holdfast error for a botocore error; its text contains no secrets."""
    answer = getattr(error, "response", None)
    if answer is None:
        return _without_answer(error, uri)
    code = str(answer.get("Error", {}).get("Code", ""))
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return error_for_code(code, status, uri)


def error_for_code(code: str, status: int, uri: str) -> CheckpointError:
    """Return the Holdfast error for an S3 error code and its HTTP status, 0 if unknown."""
    if code in _MISSING:
        return CheckpointNotFoundError("no such object", uri)
    if code in _CONFLICTS:
        return CheckpointConflictError.exists(uri)
    if code in _FULL or status == 507:
        return StorageFullError(f"store has no space left ({code})", uri)
    if code == "NoSuchBucket":
        return InvalidRequestError("bucket does not exist; create it first", uri, kind="no-bucket")
    if status == 501 or code == "NotImplemented":
        return InvalidRequestError(f"store does not support this ({code or status})", uri)
    if status >= 500 or status in (408, 429) or code in _TRANSIENT or "Throttl" in code:
        return StorageUnavailableError(f"S3 failed ({code or status})", uri)
    if status in (301, 307, 400, 401, 403, 405, 411, 416) or code:
        message = f"S3 refuses this ({code or status}); check credentials, permissions, region"
        return InvalidRequestError(message, uri, kind="refused")
    return StorageUnavailableError(f"S3 failed ({code or status})", uri)


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


def _without_answer(error: Exception, uri: str) -> CheckpointError:
    name = type(error).__name__
    if name in _UNAUTHORIZED:
        return InvalidRequestError(f"no credentials for S3 ({name})", uri)
    if name == "SSLError" and "CERTIFICATE_VERIFY_FAILED" in str(error):
        message = "S3's certificate is not trusted; set its authority's file (s3.ca-bundle)"
        return InvalidRequestError(message, uri)
    if name == "SSLError" and "WRONG_VERSION_NUMBER" in str(error):
        message = "endpoint does not support TLS; use http://"
        return InvalidRequestError(message, uri)
    if name in ("ParamValidationError", "InvalidRegionError", "UnknownServiceError"):
        return InvalidRequestError(f"S3 request is not valid ({name})", uri)
    return StorageUnavailableError(f"S3 did not answer ({name})", uri)
