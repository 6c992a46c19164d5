"""Translation of errors of HDFS, in one table."""

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

# hdfs-native has no classes for most errors of the NameNode: their text has the Java class, its message and
# a stack trace.
_ANSWER = re.compile(
    r'(?:Fatal)?RPCError\("(?:[\w]+\.)*([\w$]+)", "(.*?)(?:\\n|"\)\Z|\Z)', re.DOTALL
)
_MAX_TEXT = 300

_FULL = {
    "DSQuotaExceededException",
    "NSQuotaExceededException",
    "QuotaByStorageTypeExceededException",
    "QuotaExceededException",
}
_UNAUTHORIZED = {
    "AccessControlException",
    "AuthorizationException",
    "SecretManager$InvalidToken",
    "SnapshotAccessControlException",
}
_REFUSED = {
    "FSLimitException$MaxDirectoryItemsExceededException",
    "FSLimitException$PathComponentTooLongException",
    "HadoopIllegalArgumentException",
    "IllegalArgumentException",
    "InvalidPathException",
    "ParentNotDirectoryException",
    "PathIsNotEmptyDirectoryException",
    "SnapshotException",
    "UnresolvedPathException",
    "UnsupportedOperationException",
}
_GONE = {"FileNotFoundException", "LeaseExpiredException"}
_CONFLICTS = {"AlreadyBeingCreatedException", "FileAlreadyExistsException"}

_NOT_PERFORMED = {
    "ObserverRetryOnActiveException",
    "RetriableException",
    "SafeModeException",
    "StandbyException",
}
"""Refusals by the NameNode itself. Other errors may come from a router that did not get the NameNode's answer."""

_UNAUTHENTICATED = ("SASLError", "GSSAPIError", "NoSASLMechanism")
_DATA_NODE_FAILURES = ("DataTransferError", "BlocksNotFound")


@contextmanager
def map_errors(uri: str) -> Iterator[None]:
    """Translate errors of hdfs-native."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise error_for(error, uri) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # raised for a damaged token file
            raise
        raise InvalidRequestError(f"hdfs-native panicked ({error})", uri) from error


def java_class(error: BaseException | None) -> str:
    """Return the Java class in the NameNode's answer; empty without an answer."""
    answer = _ANSWER.match(str(error))
    return answer[1] if answer else ""


def error_for(error: Exception, uri: str) -> CheckpointError:
    """Return the Holdfast error for an error of hdfs-native."""
    name = java_class(error)
    if isinstance(error, FileNotFoundError) or name in _GONE:
        return CheckpointNotFoundError("no such file or directory", uri)
    if isinstance(error, FileExistsError) or name in _CONFLICTS:
        return CheckpointConflictError.exists(uri)
    text = _text(error)
    if name in _FULL:
        return StorageFullError(f"quota is used up ({text})", uri)
    if isinstance(error, PermissionError) or name in _UNAUTHORIZED:
        return InvalidRequestError(f"HDFS refuses this ({text})", uri, kind="refused")
    if name in _REFUSED:
        return InvalidRequestError(f"HDFS refuses this ({text})", uri)
    if str(error).startswith(_UNAUTHENTICATED):
        message = (
            f"authentication to HDFS failed ({text}); "
            "get a Kerberos ticket (kinit) or a delegation token"
        )
        return InvalidRequestError(message, uri, kind="refused")
    if isinstance(error, (NotADirectoryError, IsADirectoryError, NotImplementedError, ValueError)):
        return InvalidRequestError(f"HDFS can't do this ({text})", uri)
    return StorageUnavailableError(f"HDFS failed ({text})", uri)


def was_refused(error: CheckpointError) -> bool:
    """Return whether the NameNode refused the call, so that it certainly changed nothing."""
    return java_class(error.__cause__) in _NOT_PERFORMED


def lost_data(error: CheckpointError) -> bool:
    """Return whether DataNodes failed, so that written data may be lost."""
    return str(error.__cause__).startswith(_DATA_NODE_FAILURES)


def _text(error: Exception) -> str:
    """Return the text of an error without the NameNode's stack trace."""
    answer = _ANSWER.match(str(error))
    text = f"{answer[1]}: {answer[2]}" if answer else str(error) or type(error).__name__
    text = text.replace('\\"', '"')
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
