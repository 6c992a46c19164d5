"""hdfs-native's clients, two for each cluster and process."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from holdfast.common import ProcessCache
from holdfast.errors import InvalidRequestError
from holdfast.locations.file_systems.hdfs.bounded_calls import bounded

_Result = TypeVar("_Result")

Options = tuple[tuple[str, str], ...]
"""Hadoop's options that win over those in its files, by name, sorted."""

_CALL_S = 20.0
"""How long the NameNode may take for one call; hdfs-native itself would wait for ever."""

_MAX_ATTEMPTS = "dfs.client.failover.max.attempts"
_FIRST_SLEEP = "dfs.client.failover.sleep.base.millis"
_LONGEST_SLEEP = "dfs.client.failover.sleep.max.millis"

_FOR_CALLS = {_MAX_ATTEMPTS: "4", _FIRST_SLEEP: "50", _LONGEST_SLEEP: "500"}
"""Enough to find the active one of some NameNodes; who calls repeats what fails. Hadoop's own patience
with a NameNode that is down is three minutes."""

_FOR_STREAMS = {_MAX_ATTEMPTS: "60", _FIRST_SLEEP: "100", _LONGEST_SLEEP: "2000"}
"""A minute or two, for what is in the middle of a stream can't be repeated."""


class HdfsClient:
    """A client whose calls end in time.

    Args:
        raw: hdfs-native's.
        forget: Called when it did not answer: the next attempt is to have a new connection.
    """

    def __init__(self, raw: Any, forget: Callable[[], object]) -> None:
        self.raw = raw
        self._forget = forget

    def run(self, call: Callable[[Any], _Result], seconds: float | None = None) -> _Result:
        """The result of one call to the NameNode. Raises `TimeoutError` too."""
        try:
            return bounded(lambda: call(self.raw), _CALL_S if seconds is None else seconds)
        except TimeoutError:
            self._forget()
            raise


_CLIENTS: ProcessCache[tuple[str, Options, bool], HdfsClient] = ProcessCache()


def options_of(options: Mapping[str, str]) -> Options:
    """Hadoop's options in a form that can be the key of a dictionary."""
    return tuple(sorted(options.items()))


def client_for(uri: str, options: Options, *, for_streams: bool = False) -> HdfsClient:
    """A client of the cluster that a URI names; of the default one if it names none.

    It finds its settings where Hadoop's own clients do: `HADOOP_CONF_DIR`, `HADOOP_USER_NAME`,
    `HADOOP_TOKEN_FILE_LOCATION`, Kerberos' ticket cache.

    Args:
        uri: Normalized URI of a file or directory.
        options: Hadoop's options that win over those in its files.
        for_streams: Whether it waits for a NameNode that is down.

    Raises:
        InvalidRequestError: hdfs-native is missing, can't be used here, or refuses the settings.
    """
    if _CLIENTS.lost_values:  # hdfs-native waits for threads that are not in this process
        message = "hdfs:// can't be used in a process that was forked after its first use; spawn it"
        raise InvalidRequestError(message, uri)
    scheme, _, rest = uri.partition("://")
    authority = rest.partition("/")[0]
    key = (f"{scheme}://{authority}" if authority else "", options, for_streams)

    def make() -> HdfsClient:
        ours = _FOR_STREAMS if for_streams else _FOR_CALLS
        raw = _make(key[0], dict(options) | _active_alone(authority) | ours, uri)
        return HdfsClient(raw, lambda: _CLIENTS.drop(key))

    return _CLIENTS.get(key, make)


def _active_alone(authority: str) -> dict[str, str]:
    """The option not to ask observers, which may not know yet what another process has written."""
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
        message = f"HDFS can't be reached this way ({error}); is HADOOP_CONF_DIR right?"
        raise InvalidRequestError(message, uri) from error
