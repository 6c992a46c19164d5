"""Translation of errors of fsspec, and of every library below it, into Holdfast errors."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.common import FULL_ERRNOS, shortage_of
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    StorageFullError,
    StorageUnavailableError,
)

_REFUSED_ERRNOS = {errno.EROFS, errno.ENAMETOOLONG}

# By name, because their libraries (paramiko, asyncssh) may not be installed.
_UNAUTHORIZED = {
    "AuthenticationException",
    "BadHostKeyException",
    "HostKeyNotVerifiable",
    "PermissionDenied",
}


@contextmanager
def map_errors(uri: str) -> Iterator[None]:
    """Translate errors of fsspec and of the libraries below it."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # each library has its own classes
        raise _error_for(error, uri) from error


def _error_for(error: Exception, uri: str) -> CheckpointError:
    # Only text that can't contain a secret is quoted; the rest is in the cause.
    text = getattr(error, "strerror", None) or type(error).__name__
    number = getattr(error, "errno", None)
    if isinstance(error, FileNotFoundError):
        return CheckpointNotFoundError("no such file or directory", uri)
    if isinstance(error, FileExistsError):
        return CheckpointConflictError.exists(uri)
    if isinstance(error, PermissionError):
        return InvalidRequestError(f"operation is not permitted ({text})", uri, kind="refused")
    if isinstance(error, NotADirectoryError | IsADirectoryError) or number in _REFUSED_ERRNOS:
        return InvalidRequestError(f"path can't be used ({text})", uri)
    if number in FULL_ERRNOS:
        return StorageFullError(f"no space left ({text})", uri)
    if _was_refused(error):
        message = f"access denied; check credentials and host key ({text})"
        return InvalidRequestError(message, uri, kind="refused")
    if isinstance(error, TypeError | ValueError | NotImplementedError):
        message = f"fsspec can't do this ({text}); check its configuration of the protocol"
        return InvalidRequestError(message, uri)
    return shortage_of(error, uri) or StorageUnavailableError(f"store failed ({text})", uri)


def _was_refused(error: Exception) -> bool:
    """Return whether an error is about credentials; retries could lock an account."""
    text = str(error)
    if text == "No authentication methods available":
        return True
    # paramiko uses the same class for a connection that is lost during authentication
    is_lost = "transport shut down" in text or "timeout" in text
    return not is_lost and any(each.__name__ in _UNAUTHORIZED for each in type(error).__mro__)
