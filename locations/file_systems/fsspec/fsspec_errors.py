"""The table that turns the errors of fsspec and of every library below it into ours."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.common import shortage_of
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    StorageFullError,
    StorageUnavailableError,
)

_NOT_ALLOWED = {errno.EROFS, errno.ENAMETOOLONG}
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

# By name, because their libraries (paramiko, asyncssh) may not be there.
_NOT_LET_IN = {
    "AuthenticationException",
    "BadHostKeyException",
    "HostKeyNotVerifiable",
    "PermissionDenied",
}


@contextmanager
def translated(uri: str) -> Iterator[None]:
    """Turn the errors of fsspec and of the libraries below it into ours."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # each library has its own
        raise _error_for(error, uri) from error


def _error_for(error: Exception, uri: str) -> CheckpointError:
    # Only what can't hold a secret is quoted; the rest is in the cause.
    text = getattr(error, "strerror", None) or type(error).__name__
    number = getattr(error, "errno", None)
    if isinstance(error, FileNotFoundError):
        return CheckpointNotFoundError("no such file or directory", uri)
    if isinstance(error, FileExistsError):
        return CheckpointConflictError.exists(uri)
    if isinstance(error, PermissionError):
        return InvalidRequestError(f"not possible here ({text})", uri, kind="refused")
    if isinstance(error, NotADirectoryError | IsADirectoryError) or number in _NOT_ALLOWED:
        return InvalidRequestError(f"not possible here ({text})", uri)
    if number in _NO_ROOM:
        return StorageFullError(f"no room left ({text})", uri)
    if _was_refused(error):
        message = f"not let in; check credentials and host key ({text})"
        return InvalidRequestError(message, uri, kind="refused")
    if isinstance(error, TypeError | ValueError | NotImplementedError):
        message = f"fsspec can't do this ({text}); check its configuration of that protocol"
        return InvalidRequestError(message, uri)
    return shortage_of(error, uri) or StorageUnavailableError(f"store failed ({text})", uri)


def _was_refused(error: Exception) -> bool:
    """Whether an error is about credentials, which trying again may lock."""
    text = str(error)
    if text == "No authentication methods available":
        return True
    # paramiko says the same class of a connection that is lost meanwhile
    is_lost = "transport shut down" in text or "timeout" in text
    return not is_lost and any(each.__name__ in _NOT_LET_IN for each in type(error).__mro__)
