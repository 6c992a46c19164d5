"""What HDFS's errors mean: the one table of them."""

import re
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

# hdfs-native has no classes for most errors of the NameNode; their Java class is in the text.
_JAVA = re.compile(r"\b(?:[a-z]\w*\.)+([A-Z]\w+)")

_FULL = {"DSQuotaExceededException", "NSQuotaExceededException", "QuotaExceededException"}
_REFUSED = {
    "AccessControlException",
    "AuthorizationException",
    "InvalidToken",
    "SecretManager$InvalidToken",
    "ParentNotDirectoryException",
    "FSLimitException$PathComponentTooLongException",
    "InvalidPathException",
}
_GONE = {"LeaseExpiredException", "FileNotFoundException"}
_TAKEN = {"FileAlreadyExistsException", "AlreadyBeingCreatedException"}


@contextmanager
def translated(uri: str) -> Iterator[None]:
    """Turn hdfs-native's errors into ours."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise error_for(error, uri) from error


def java_class(error: BaseException) -> str:
    """The Java class that the NameNode named, or empty if it did not answer."""
    found = _JAVA.search(str(error))
    return found[1] if found else ""


def error_for(error: Exception, uri: str) -> CheckpointError:
    """Our error for one of hdfs-native's."""
    name = java_class(error)
    if isinstance(error, FileNotFoundError) or name in _GONE:
        if name == "LeaseExpiredException":
            message = "file was deleted while it was written, by another driver or a cleanup"
        else:
            message = "no such file or directory"
        return CheckpointNotFoundError(message, uri)
    if isinstance(error, FileExistsError) or name in _TAKEN:
        return CheckpointConflictError("file exists already; somebody else has written it", uri)
    if name in _FULL:
        return StorageFullError(f"quota of the directory is used up ({name})", uri)
    if isinstance(error, PermissionError) or name in _REFUSED:
        message = f"HDFS refuses this ({name or type(error).__name__}); check user and permissions"
        return InvalidRequestError(message, uri)
    if isinstance(error, (NotADirectoryError, IsADirectoryError, ValueError)):
        return InvalidRequestError(f"HDFS can't do this ({type(error).__name__})", uri)
    return StorageUnavailableError(f"HDFS failed ({name or type(error).__name__})", uri)


def was_answered(error: CheckpointError) -> bool:
    """Whether the NameNode said no, so that the call surely changed nothing."""
    cause = error.__cause__
    return cause is not None and bool(java_class(cause))
