"""hdfs-native's clients, two for each cluster and process, whose calls have timeouts."""

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from holdfast.common import ProcessCache
from holdfast.errors import InvalidRequestError

_Result = TypeVar("_Result")

_idle: deque["_Worker"] = deque()
os.register_at_fork(after_in_child=_idle.clear)  # threads that are not in the child


def call_with_timeout(call: Callable[[], _Result], seconds: float) -> _Result:
    """Return the result of a call that completes within a number of seconds.

    Raises:
        TimeoutError: The call took longer. It continues in a daemon thread, which does not keep the
            process alive.
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
        message = f"no answer in {seconds:g} s"
        raise TimeoutError(message) from None
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


class HdfsClient:
    """A client whose calls have timeouts.

    Args:
        raw: hdfs-native's client.
        forget: Called after a timeout, so that the next attempt gets a new connection.
        patience: Timeouts of calls.
    """

    def __init__(self, raw: Any, forget: Callable[[], object], patience: HdfsPatience) -> None:
        self.raw = raw
        self.patience = patience
        self._forget = forget

    def run(self, call: Callable[[Any], _Result], seconds: float | None = None) -> _Result:
        """Return the result of one call to the NameNode. Also raises `TimeoutError`."""
        try:
            return call_with_timeout(
                lambda: call(self.raw), self.patience.call_s if seconds is None else seconds
            )
        except TimeoutError:
            self._forget()
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
    `HADOOP_USER_NAME`, `HADOOP_TOKEN_FILE_LOCATION`, Kerberos' ticket cache.

    Args:
        uri: Normalized URI of a file or directory.
        options: Hadoop options that override its configuration files.
        patience: Timeouts of calls.
        for_streams: Whether the client waits for a NameNode that is down.

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
        raise InvalidRequestError(message, uri) from error
    try:
        return Client(cluster or None, options)
    except Exception as error:
        message = f"HDFS client can't be created ({error}); check HADOOP_CONF_DIR"
        raise InvalidRequestError(message, uri) from error
