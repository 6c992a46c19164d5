"""Queries of Spark Connect: their batches run in a Python process next to the server."""

import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import unquote

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.backends.keys import MAX_PARALLELISM
from holdfast.errors import CheckpointError, CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.file_systems import retry_deadline
from holdfast.spark.checkpoint_location import read_text, replace
from holdfast.spark.compat import error_condition, settings_of
from holdfast.spark.engines.engine import RunningQuery
from holdfast.spark.settings import PREFIX, Settings, Stores
from holdfast.spark.subtask import TaskPayload

_MAX_PAYLOAD_BYTES = 16 << 20
"""A few times this size makes a server fail."""

_PROBE_DEADLINE_S = 10.0

_REDACTED_STRINGS = "spark.sql.redaction.string.regex"
_REDACTED_OPTIONS = "spark.sql.redaction.options.regex"
_NO_MATCH = "(?!)"
_REDACTION = "*********(redacted)"

_SINK = re.compile(
    r"ForeachBatchSink, (?P<query_id>[0-9a-f-]{36}), \[(?P<options>.*)\], \w+, \d+$", re.MULTILINE
)
_LOCATION = re.compile(r"(?:^|, )checkpointLocation=(?P<rest>.*)", re.IGNORECASE)
_DEFAULT_LOCATION = "spark.sql.streaming.checkpointLocation"


@dataclass(frozen=True, slots=True)
class _OwnQuery:
    """The query of a run, and whether Holdfast's file systems can read its checkpointLocation; with Spark it takes a job."""

    query: RunningQuery
    is_reachable: bool


@dataclass
class ConnectEngine:
    """An `Engine` in the process that Spark starts for a run of a query.

    Args:
        client_session: The session in which the client started the query.
        session: The query's copy of it, which its batches use.
    """

    client_session: SparkSession
    session: SparkSession

    def running_query(self, known: RunningQuery | None = None) -> RunningQuery:
        del known  # the engine knows it itself
        return self._own.query

    def default_parallelism(self) -> int:
        return self._default_parallelism

    def executors(self) -> frozenset[str]:
        return frozenset()

    def offsets(self, query: RunningQuery, batch_id: int) -> str | None:
        return self.read(query, f"offsets/{batch_id}")

    def read(self, query: RunningQuery, name: str) -> str | None:
        uri = f"{query.checkpoint_location}/{name}"
        try:
            if self._own.is_reachable:
                return read_text(uri)
            return _read_by_spark(self.session, uri)[0]
        except CheckpointNotFoundError:
            return None
        except AnalysisException as error:
            if error_condition(error) == "PATH_NOT_FOUND":
                return None
            raise

    def write(self, query: RunningQuery, name: str, text: str) -> None:
        # Spark can't write a single file here.
        if self._own.is_reachable:
            replace(f"{query.checkpoint_location}/{name}", text.encode())

    def check(self, settings: Settings) -> None:
        if settings.checkpoint_storage == "memory" and settings.checkpoint_dir is None:
            raise InvalidRequestError(
                "with Spark Connect the storage memory needs a directory: the process that runs "
                f"batches ends with the query, and the state with it; set {PREFIX}checkpoint.dir",
                kind="setting",
            )

    def needs_rows(self, query: RunningQuery) -> bool:
        del query
        return True  # finding out takes longer than repeating a batch occasionally

    def last_progress(self, query: RunningQuery) -> str | None:
        del query  # it is in another session than the batches
        return None

    def last_input_rows(self, query: RunningQuery) -> None:
        """Return None: the query is in another session than the batches."""

    def is_empty(self, rows: DataFrame) -> bool:
        # Computes all rows: the number of partitions is unknown here.
        return rows.count() == 0

    def reports(self) -> None:
        """Spark Connect has no accumulators."""

    @contextmanager
    def send(self, payload: TaskPayload, *, uid: str) -> Iterator[TaskPayload]:
        if payload.size > _MAX_PAYLOAD_BYTES:
            raise InvalidRequestError(
                f"operator {uid!r} has {payload.size} bytes of function, broadcast rows and state "
                f"stored in metadata; with Spark Connect they must be <= {_MAX_PAYLOAD_BYTES} bytes. "
                f"Set {PREFIX}state.inline-threshold lower, and {PREFIX}checkpoint.storage to "
                "filesystem, before the state grows that large",
                kind="setting",
            )
        yield payload

    def stop_error(self, query: RunningQuery, error: BaseException) -> None:
        """The server doesn't wait for the process of a stopped query, and ends it."""

    def jobs(self, run_id: str) -> None:
        del run_id  # Spark Connect does not report jobs

    @cached_property
    def _default_parallelism(self) -> int:
        # Clients can't ask for it, but it is the number of partitions of a range.
        rows = self.session.range(MAX_PARALLELISM).select(F.spark_partition_id())
        return rows.distinct().count()

    @cached_property
    def _own(self) -> _OwnQuery:
        query = self._own_query()
        for location in _candidate_locations(self.client_session, self.session, query):
            try:
                text, uri = _read_by_spark(self.session, f"{location}/metadata")
                metadata = json.loads(text)
            except (PySparkException, ValueError):
                continue  # not a checkpointLocation
            if metadata["id"] == query.id:
                root = uri.removesuffix("/metadata")
                running = RunningQuery(query.id, query.runId, root, query.name or "")
                return _OwnQuery(running, self._reaches(root, text))
        raise InvalidRequestError(
            f"the checkpointLocation of query {query.id} is unknown; start the query with the option "
            "checkpointLocation"
        )

    def _own_query(self) -> StreamingQuery:
        """Find the query of the client's session that this batch belongs to.

        Spark does not pass its id. But the session of the batch belongs only to that query: a setting of the session
        that redacts an id in plans is visible in the plan of that query.
        """
        running: list[StreamingQuery] = list(self.client_session.streams.active)
        if len(running) > 1:
            running = [query for query in running if self._is_redacted(query)]
        if len(running) != 1:
            message = f"can't determine which of the session's {len(running)} queries this batch belongs to"
            raise InvalidRequestError(message)
        return running[0]

    def _is_redacted(self, query: StreamingQuery) -> bool:
        with _setting(self.session, _REDACTED_STRINGS, re.escape(query.id)):
            plan = _plan(query)
        return _REDACTION in plan and query.id not in plan

    def _reaches(self, root: str, metadata: str) -> bool:
        """Return whether Holdfast's file systems read the same metadata as Spark."""
        try:
            Stores.parse(settings_of(self.session), root).use()
            with retry_deadline(_PROBE_DEADLINE_S):
                return read_text(f"{root}/metadata") == metadata
        except CheckpointError:
            return False


def _candidate_locations(
    client_session: SparkSession, session: SparkSession, query: StreamingQuery
) -> Iterator[str]:
    """Yield possible checkpoint directories of a query, as the user wrote them."""
    options = _sink_options(query)
    if _REDACTION in options:
        # Options with "url" in them are redacted by default, by the session that explains.
        with _setting(client_session, _REDACTED_OPTIONS, _NO_MATCH):
            options = _sink_options(query)
    match = _LOCATION.search(options)
    if match:
        # The separator of options may also occur in a path.
        for end in re.finditer(r", [^,=]+=|$", match["rest"]):
            yield match["rest"][: end.start()]
    directory = session.conf.get(_DEFAULT_LOCATION, None)
    if directory and query.name:
        yield f"{directory}/{query.name}"


def _sink_options(query: StreamingQuery) -> str:
    """Return the options that the query was started with, as far as the plan shows them."""
    sinks = _SINK.finditer(_plan(query))
    return next((sink["options"] for sink in sinks if sink["query_id"] == query.id), "")


@contextmanager
def _setting(session: SparkSession, key: str, value: str) -> Iterator[None]:
    """Change a setting of the session for the block."""
    before = session.conf.get(key, None)
    session.conf.set(key, value)
    try:
        yield
    finally:
        if before is None:
            session.conf.unset(key)
        else:
            session.conf.set(key, before)


def _plan(query: StreamingQuery) -> str:
    with redirect_stdout(io.StringIO()) as text:
        query.explain(extended=True)
    return text.getvalue()


def _read_by_spark(session: SparkSession, path: str) -> tuple[str, str]:
    """Read a small file with Spark; returns the text and the full URI."""
    escaped = re.sub(r"([\\{}\[\]*?])", r"\\\1", path)
    frame = session.read.text(escaped, wholetext=True)
    ((text, uri),) = frame.selectExpr("value", "_metadata.file_path").collect()
    scheme, _, rest = unquote(uri).partition(":")
    # Hadoop writes file:/path, and file:///path too.
    return text, f"{scheme}:{rest if rest.startswith('//') else f'//{rest}'}"
