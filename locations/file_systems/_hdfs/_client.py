"""hdfs-native's client, one for each cluster and process."""

import os
import sys
import threading
from typing import Any

from holdfast.errors import InvalidRequestError

_LOCK = threading.Lock()
_CLIENTS: dict[str, Any] = {}
_was_forked = False


def _note_fork() -> None:
    global _LOCK, _was_forked  # noqa: PLW0603  # of the process
    _LOCK = threading.Lock()
    # Its threads are not in this process, and it would wait for them for ever.
    _was_forked = _was_forked or "hdfs_native" in sys.modules


os.register_at_fork(after_in_child=_note_fork)


def client_for(uri: str) -> Any:
    """The client of the cluster that a URI names; of the default one if it names none.

    It finds its settings where Hadoop's own clients do: `HADOOP_CONF_DIR`, `HADOOP_USER_NAME`,
    `HADOOP_TOKEN_FILE_LOCATION`, Kerberos' ticket cache.

    Raises:
        InvalidRequestError: hdfs-native is missing, can't be used here, or refuses the settings.
    """
    if _was_forked:
        message = "hdfs:// can't be used in a process that was forked after its first use; spawn it"
        raise InvalidRequestError(message, uri)
    scheme, _, rest = uri.partition("://")
    authority = rest.partition("/")[0]
    cluster = f"{scheme}://{authority}" if authority else ""
    found = _CLIENTS.get(cluster)
    if found is None:
        with _LOCK:
            found = _CLIENTS.get(cluster)
            if found is None:
                found = _CLIENTS[cluster] = _make(cluster, uri)
    return found


def _make(cluster: str, uri: str) -> Any:
    try:
        from hdfs_native import Client  # noqa: PLC0415  # optional
    except ImportError as error:
        message = "hdfs:// needs hdfs-native: pip install 'holdfast[hdfs]'"
        raise InvalidRequestError(message, uri) from error
    try:
        return Client(cluster or None)
    except Exception as error:
        message = f"HDFS can't be reached this way ({error}); is HADOOP_CONF_DIR right?"
        raise InvalidRequestError(message, uri) from error
