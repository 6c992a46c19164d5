"""hdfs-native's clients, two for each cluster and process: calls with timeouts, and the translation of their errors."""

import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from holdfast.common import ProcessCache
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    StorageFullError,
    StorageUnavailableError,
)

_Result = TypeVar("_Result")

_idle: deque["_Worker"] = deque()
os.register_at_fork(after_in_child=_idle.clear)  # threads that are not in the child


def call_with_timeout(call: Callable[[], _Result], seconds: float) -> _Result:
    """Return the result of a call that completes within a number of seconds.

    Raises:
        TimeoutError: The call took longer. It continues in a daemon thread, which does not keep the process alive.
    """
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
        worker.start()
    done: SimpleQueue[tuple[_Result | None, BaseException | None]] = SimpleQueue()
    worker.jobs.put((call, done))
    try:
        result, error = done.get(timeout=seconds)
    except Empty:
        raise TimeoutError(f"no answer in {seconds:g} s") from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # the call has returned


class _Worker(threading.Thread):
    """A thread that runs one call at a time; a new thread for each call would cost more than the call."""

    def __init__(self) -> None:
        super().__init__(name="holdfast-hdfs", daemon=True)
        self.jobs: SimpleQueue[tuple[Callable[[], Any], SimpleQueue[Any]]] = SimpleQueue()

    def run(self) -> None:
        while True:
            call, done = self.jobs.get()
            outcome: tuple[Any, BaseException | None]
            try:
                outcome = (call(), None)
            except BaseException as error:  # noqa: BLE001  # raised in the caller's thread
                outcome = (None, error)
            del call
            _idle.append(self)
            done.put(outcome)
            del done, outcome


Options = tuple[tuple[str, str], ...]
"""Hadoop options that override its configuration files, sorted by name."""

_MAX_ATTEMPTS = "dfs.client.failover.max.attempts"
_FIRST_SLEEP = "dfs.client.failover.sleep.base.millis"
_MAX_SLEEP = "dfs.client.failover.sleep.max.millis"

_CALL_OPTIONS = {_MAX_ATTEMPTS: "4", _FIRST_SLEEP: "50", _MAX_SLEEP: "500"}
"""Enough to find the active NameNode; the caller retries failed calls. Hadoop itself would wait three minutes
for a NameNode that is down."""

_STREAM_OPTIONS = {_MAX_ATTEMPTS: "60", _FIRST_SLEEP: "100", _MAX_SLEEP: "2000"}
"""A minute or two, because the middle of a stream can't be retried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HdfsPatience:
    """Timeouts of calls to HDFS, where hdfs-native itself would wait forever; values only.

    Attributes:
        call_s: Seconds for one call to the NameNode.
        head_s: Seconds for the head of a file, which can be sent again. When a DataNode dies,
            hdfs-native 0.14 may block forever in a sync, so this must leave time to try others.
        write_s: Seconds for a piece. Its pipeline may lose a DataNode in the meantime, which is
            detected after a minute.
        end_s: Seconds for the last sync, and for closing.
        free_s: Seconds for closing a deleted file.
        waits_in_streams: Whether a stream waits a minute or two for a NameNode that is down, because
            the middle of a stream can't be retried.
    """

    call_s: float = 20.0
    head_s: float = 15.0
    write_s: float = 120.0
    end_s: float = 60.0
    free_s: float = 2.0
    waits_in_streams: bool = True


@dataclass(frozen=True, slots=True)
class HdfsClient:
    """hdfs-native's client `raw`, with timeouts; `forget` makes the next attempt get a new connection."""

    raw: Any
    forget: Callable[[], object]
    patience: HdfsPatience

    def run(self, call: Callable[[Any], _Result], seconds: float | None = None) -> _Result:
        """Return the result of one call to the NameNode. Also raises `TimeoutError`."""
        seconds = self.patience.call_s if seconds is None else seconds
        try:
            return call_with_timeout(lambda: call(self.raw), seconds)
        except TimeoutError:
            self.forget()
            raise


CLIENTS: ProcessCache[tuple[str, Options, bool, HdfsPatience], HdfsClient] = ProcessCache()


def options_of(options: Mapping[str, str]) -> Options:
    """Return Hadoop options in a hashable form."""
    return tuple(sorted(options.items()))


def client_for(
    uri: str, options: Options, patience: HdfsPatience, *, for_streams: bool = False
) -> HdfsClient:
    """Return a client of the URI's cluster, or of the default cluster if the URI names none.

    Its settings come from the same places as those of Hadoop's clients: `HADOOP_CONF_DIR`,
    `HADOOP_USER_NAME`, `HADOOP_TOKEN_FILE_LOCATION`, Kerberos' ticket cache; `options` override them.
    A client `for_streams` waits for a NameNode that is down.

    Raises:
        InvalidRequestError: hdfs-native is missing, can't be used here, or rejects the settings.
    """
    if CLIENTS.was_forked_with_values:  # hdfs-native would wait for threads of the parent
        message = "hdfs:// can't be used in a process forked after its first use; spawn the process"
        raise InvalidRequestError(message, uri)
    scheme, _, rest = uri.partition("://")
    authority = rest.partition("/")[0]
    key = (f"{scheme}://{authority}" if authority else "", options, for_streams, patience)

    def make() -> HdfsClient:
        ours = _STREAM_OPTIONS if for_streams and patience.waits_in_streams else _CALL_OPTIONS
        raw = _make(key[0], dict(options) | _active_only(authority) | ours, uri)
        return HdfsClient(raw, lambda: CLIENTS.drop(key), patience)

    return CLIENTS.get(key, make)


def _active_only(authority: str) -> dict[str, str]:
    """Return the option to avoid observers, which may not have another process's latest writes."""
    provider = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
    return {f"dfs.client.failover.proxy.provider.{authority}": provider}


def _make(cluster: str, options: dict[str, str], uri: str) -> Any:
    try:
        from hdfs_native import Client  # noqa: PLC0415  # optional
    except ImportError as error:
        message = "hdfs:// needs hdfs-native: pip install 'holdfast[hdfs]'"
        raise InvalidRequestError(message, uri, kind="missing-package") from error
    try:
        return Client(cluster or None, options)
    except Exception as error:
        message = f"HDFS client can't be created ({error}); check HADOOP_CONF_DIR"
        raise InvalidRequestError(message, uri, kind="connection") from error


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
        return InvalidRequestError(f"HDFS refused the request ({text})", uri, kind="refused")
    if name in _REFUSED:
        return InvalidRequestError(f"HDFS refused the request ({text})", uri)
    if str(error).startswith(_UNAUTHENTICATED):
        message = (
            f"authentication to HDFS failed ({text}); "
            "get a Kerberos ticket (kinit) or a delegation token"
        )
        return InvalidRequestError(message, uri, kind="refused")
    if isinstance(error, (NotADirectoryError, IsADirectoryError, NotImplementedError, ValueError)):
        return InvalidRequestError(f"HDFS client can't perform the request ({text})", uri)
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
