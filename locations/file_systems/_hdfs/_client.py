"""hdfs-native's clients, two for each cluster and process."""

import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

from holdfast.errors import InvalidRequestError

_LOCK = threading.Lock()
_CLIENTS: dict[tuple[str, "Options", bool], Any] = {}
_was_forked = False

Options = tuple[tuple[str, str], ...]
"""Hadoop's options that win over those in its files, by name, sorted."""

_PATIENCE = "dfs.client.failover.max.attempts"

_FOR_CALLS = {
    _PATIENCE: "4",
    "dfs.client.failover.sleep.base.millis": "50",
    "dfs.client.failover.sleep.max.millis": "500",
}
"""Enough to find the active one of some NameNodes; who calls repeats what fails. Hadoop's own patience
with a NameNode that is down is three minutes."""

_FOR_STREAMS = {
    _PATIENCE: "60",
    "dfs.client.failover.sleep.base.millis": "100",
    "dfs.client.failover.sleep.max.millis": "2000",
}
"""About a minute with a pair of NameNodes, for nobody can repeat a stream. It sleeps after all were
tried once."""

_ONE_NAME_NODE = {_PATIENCE: "30"}


def _note_fork() -> None:
    global _LOCK, _was_forked  # noqa: PLW0603  # of the process
    _LOCK = threading.Lock()
    # Its threads are not in this process, and it would wait for them for ever.
    _was_forked = _was_forked or "hdfs_native" in sys.modules


os.register_at_fork(after_in_child=_note_fork)


def options_of(options: Mapping[str, str]) -> Options:
    """The same as a key."""
    return tuple(sorted(options.items()))


def client_for(uri: str, options: Options, *, patient: bool = False) -> Any:
    """A client of the cluster that a URI names; of the default one if it names none.

    It finds its settings where Hadoop's own clients do: `HADOOP_CONF_DIR`, `HADOOP_USER_NAME`,
    `HADOOP_TOKEN_FILE_LOCATION`, Kerberos' ticket cache.

    Args:
        uri: Normalized URI of a file or directory.
        options: Hadoop's options that win over those in its files.
        patient: Whether calls wait for a NameNode that is down, about a minute.

    Raises:
        InvalidRequestError: hdfs-native is missing, can't be used here, or refuses the settings.
    """
    if _was_forked:
        message = "hdfs:// can't be used in a process that was forked after its first use; spawn it"
        raise InvalidRequestError(message, uri)
    scheme, _, rest = uri.partition("://")
    authority = rest.partition("/")[0]
    cluster = f"{scheme}://{authority}" if authority else ""
    key = (cluster, options, patient)
    found = _CLIENTS.get(key)
    if found is None:
        with _LOCK:
            found = _CLIENTS.get(key)
            if found is None:
                found = _CLIENTS[key] = _make(
                    cluster, dict(options) | _patience(authority, patient=patient), uri
                )
    return found


def _patience(authority: str, *, patient: bool) -> dict[str, str]:
    if not patient:
        return _FOR_CALLS
    _, _, port = authority.rpartition(":")
    return _FOR_STREAMS | (_ONE_NAME_NODE if port.isdecimal() else {})


def _make(cluster: str, options: dict[str, str], uri: str) -> Any:
    try:
        from hdfs_native import Client  # noqa: PLC0415  # optional
    except ImportError as error:
        message = "hdfs:// needs hdfs-native: pip install 'holdfast[hdfs]'"
        raise InvalidRequestError(message, uri) from error
    try:
        return Client(cluster or None, options)
    except Exception as error:
        message = f"HDFS can't be reached this way ({error}); is HADOOP_CONF_DIR right?"
        raise InvalidRequestError(message, uri) from error
