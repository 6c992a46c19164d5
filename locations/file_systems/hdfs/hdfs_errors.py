"""The meaning of HDFS's errors, in one table."""

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

# hdfs-native has no classes for most errors of the NameNode: the Java class and its message, with a
# stack trace behind it, stand in the text.
_ANSWER = re.compile(
    r'(?:Fatal)?RPCError\("(?:[\w]+\.)*([\w$]+)", "(.*?)(?:\\n|"\)\Z|\Z)', re.DOTALL
)
_LONGEST_TEXT = 300

_FULL = {
    "DSQuotaExceededException",
    "NSQuotaExceededException",
    "QuotaByStorageTypeExceededException",
    "QuotaExceededException",
}
_NOT_LET_IN = {
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
_TAKEN = {"AlreadyBeingCreatedException", "FileAlreadyExistsException"}

_NOT_NOW = {
    "ObserverRetryOnActiveException",
    "RetriableException",
    "SafeModeException",
    "StandbyException",
}
"""With these the NameNode itself has refused. Others may be a router's, which has not heard of it."""

_NO_IDENTITY = ("SASLError", "GSSAPIError", "NoSASLMechanism")
_NO_DATA_NODE = ("DataTransferError", "BlocksNotFound")


@contextmanager
def translated(uri: str) -> Iterator[None]:
    """Turn hdfs-native's errors into ours."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise error_for(error, uri) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # hdfs-native's, on a damaged token file
            raise
        raise InvalidRequestError(f"hdfs-native broke down ({error})", uri) from error


def java_class(error: BaseException | None) -> str:
    """The Java class that the NameNode named, or empty if it did not answer."""
    answer = _ANSWER.match(str(error))
    return answer[1] if answer else ""


def error_for(error: Exception, uri: str) -> CheckpointError:
    """The error of ours for an error of hdfs-native's."""
    name = java_class(error)
    if isinstance(error, FileNotFoundError) or name in _GONE:
        return CheckpointNotFoundError("no such file or directory", uri)
    if isinstance(error, FileExistsError) or name in _TAKEN:
        return CheckpointConflictError.exists(uri)
    text = _text(error)
    if name in _FULL:
        return StorageFullError(f"quota is used up ({text})", uri)
    if isinstance(error, PermissionError) or name in _NOT_LET_IN:
        return InvalidRequestError(f"HDFS refuses this ({text})", uri, kind="refused")
    if name in _REFUSED:
        return InvalidRequestError(f"HDFS refuses this ({text})", uri)
    if str(error).startswith(_NO_IDENTITY):
        message = (
            f"HDFS does not know who this is ({text}); "
            "it wants a Kerberos ticket (kinit), or a delegation token"
        )
        return InvalidRequestError(message, uri, kind="refused")
    if isinstance(error, (NotADirectoryError, IsADirectoryError, NotImplementedError, ValueError)):
        return InvalidRequestError(f"HDFS can't do this ({text})", uri)
    return StorageUnavailableError(f"HDFS failed ({text})", uri)


def was_refused(error: CheckpointError) -> bool:
    """Whether the NameNode said no, so that the call surely changed nothing."""
    return java_class(error.__cause__) in _NOT_NOW


def lost_data(error: CheckpointError) -> bool:
    """Whether DataNodes failed, so that what was written may be lost."""
    return str(error.__cause__).startswith(_NO_DATA_NODE)


def _text(error: Exception) -> str:
    """The text of an error, without the NameNode's stack trace."""
    answer = _ANSWER.match(str(error))
    text = f"{answer[1]}: {answer[2]}" if answer else str(error) or type(error).__name__
    text = text.replace('\\"', '"')
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
