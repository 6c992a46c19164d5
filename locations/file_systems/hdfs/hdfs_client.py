"""hdfs-native's clients, two for each cluster and process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.common import ProcessCache
from holdfast.errors import InvalidRequestError
from holdfast.locations.file_systems.hdfs.bounded_calls import bounded

_Result = TypeVar("_Result")

Options = tuple[tuple[str, str], ...]
"""Hadoop's options that win over those in its files, by name, sorted."""

_MAX_ATTEMPTS = "dfs.client.failover.max.attempts"
_FIRST_SLEEP = "dfs.client.failover.sleep.base.millis"
_LONGEST_SLEEP = "dfs.client.failover.sleep.max.millis"

_FOR_CALLS = {_MAX_ATTEMPTS: "4", _FIRST_SLEEP: "50", _LONGEST_SLEEP: "500"}
"""Enough to find the active one of some NameNodes; who calls repeats what fails. Hadoop's own patience
with a NameNode that is down is three minutes."""

_FOR_STREAMS = {_MAX_ATTEMPTS: "60", _FIRST_SLEEP: "100", _LONGEST_SLEEP: "2000"}
"""A minute or two, for what is in the middle of a stream can't be repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HdfsPatience:
    """How long HDFS may take; hdfs-native itself would wait for ever. Values only.

    Attributes:
        call_s: Seconds for one call to the NameNode.
        head_s: Seconds for the head of a file, which can be sent again. When a DataNode dies hdfs-native
            0.14 may wait for ever in a sync, so this must leave time for others.
        write_s: Seconds for a piece; its pipeline may lose a DataNode meanwhile, which takes a minute
            to notice.
        end_s: Seconds for the last sync, and for closing.
        free_s: Seconds for closing what was deleted.
        waits_in_streams: Whether a stream waits a minute or two for a NameNode that is down, since what
            is in the middle of a stream can't be repeated.
    """

    call_s: float = 20.0
    head_s: float = 15.0
    write_s: float = 120.0
    end_s: float = 60.0
    free_s: float = 2.0
    waits_in_streams: bool = True


class HdfsClient:
    """A client whose calls end in time.

    Args:
        raw: hdfs-native's.
        forget: Called when it did not answer: the next attempt is to have a new connection.
        patience: How long calls may take.
    """

    def __init__(self, raw: Any, forget: Callable[[], object], patience: HdfsPatience) -> None:
        self.raw = raw
        self.patience = patience
        self._forget = forget

    def run(self, call: Callable[[Any], _Result], seconds: float | None = None) -> _Result:
        """The result of one call to the NameNode. Raises `TimeoutError` too."""
        try:
            return bounded(
                lambda: call(self.raw), self.patience.call_s if seconds is None else seconds
            )
        except TimeoutError:
            self._forget()
            raise


CLIENTS: ProcessCache[tuple[str, Options, bool, HdfsPatience], HdfsClient] = ProcessCache()


def options_of(options: Mapping[str, str]) -> Options:
    """Hadoop's options in a form that can be the key of a dictionary."""
    return tuple(sorted(options.items()))


def client_for(
    uri: str, options: Options, patience: HdfsPatience, *, for_streams: bool = False
) -> HdfsClient:
    """A client of the cluster that a URI names; of the default one if it names none.

    It finds its settings where Hadoop's own clients do: `HADOOP_CONF_DIR`, `HADOOP_USER_NAME`,
    `HADOOP_TOKEN_FILE_LOCATION`, Kerberos' ticket cache.

    Args:
        uri: Normalized URI of a file or directory.
        options: Hadoop's options that win over those in its files.
        patience: How long calls may take.
        for_streams: Whether it waits for a NameNode that is down.

    Raises:
        InvalidRequestError: hdfs-native is missing, can't be used here, or refuses the settings.
    """
    if CLIENTS.was_forked_with_values:  # hdfs-native waits for threads that are not in this process
        message = "hdfs:// can't be used in a process that was forked after its first use; spawn it"
        raise InvalidRequestError(message, uri)
    scheme, _, rest = uri.partition("://")
    authority = rest.partition("/")[0]
    key = (f"{scheme}://{authority}" if authority else "", options, for_streams, patience)

    def make() -> HdfsClient:
        ours = _FOR_STREAMS if for_streams and patience.waits_in_streams else _FOR_CALLS
        raw = _make(key[0], dict(options) | _active_alone(authority) | ours, uri)
        return HdfsClient(raw, lambda: CLIENTS.drop(key), patience)

    return CLIENTS.get(key, make)


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
