"""Queries of Spark Connect: their batches run in a Python process beside the server."""

import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import unquote

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.backends.keys import MAX_PARALLELISM
from holdfast.errors import CheckpointError, CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.file_systems import retry_deadline
from holdfast.spark.checkpoint_location import read_text, replace
from holdfast.spark.engines.engine import RunningQuery
from holdfast.spark.settings import PREFIX, Settings, Stores
from holdfast.spark.subtask import Shipment

MOST_BYTES_WITH_THE_FUNCTION = 16 << 20
"""The most bytes that are sent to tasks with their function; a few times as many take a server down."""

_PROBE_DEADLINE_S = 10.0

_BLACKENED = "spark.sql.redaction.string.regex"
_HIDES_OPTIONS = "spark.sql.redaction.options.regex"
_NOTHING = "(?!)"
_MARK = "*********(redacted)"

_SINK = re.compile(
    r"ForeachBatchSink, (?P<query_id>[0-9a-f-]{36}), \[(?P<options>.*)\], \w+, \d+$", re.MULTILINE
)
_LOCATION = re.compile(r"(?:^|, )checkpointLocation=(?P<rest>.*)", re.IGNORECASE)
_DEFAULT_LOCATION = "spark.sql.streaming.checkpointLocation"


class _StreamingQuery(Protocol):
    """The part of PySpark's class that is used; each kind of session has a class of its own."""

    @property
    def id(self) -> str: ...

    @property
    def runId(self) -> str: ...  # noqa: N802

    @property
    def name(self) -> str | None: ...

    def explain(self, extended: bool = False) -> None: ...  # noqa: FBT001, FBT002


@dataclass(frozen=True, slots=True)
class _OwnQuery:
    """Values that stay the same over a run of a query.

    Attributes:
        query_id: Spark's id of the query.
        run_id: Spark's id of the run.
        location: Spark's checkpoint directory.
        name: The query's name; empty if it has none.
        is_ours: Whether Holdfast's own file systems reach that; to read it by Spark takes a job.
    """

    query_id: str
    run_id: str
    location: str
    name: str
    is_ours: bool


@dataclass(slots=True)
class ConnectEngine:
    """An `Engine` in the process that Spark starts for a run of a query.

    Args:
        home: The session that the client has started the query in.
        session: The query's own copy of it, in which batches come.
    """

    home: SparkSession
    session: SparkSession
    _known: _OwnQuery | None = field(default=None, init=False)

    def running_query(self) -> RunningQuery:
        query = self._query()
        return RunningQuery(
            query_id=query.query_id,
            run_id=query.run_id,
            checkpoint_location=query.location,
            name=query.name,
        )

    def default_parallelism(self) -> int:
        # Clients can't ask for it, but it is the number of partitions of a range.
        rows = self.session.range(MAX_PARALLELISM).select(F.spark_partition_id())
        return rows.distinct().count()

    def offsets(self, query: RunningQuery, batch_id: int) -> str | None:
        return self.read(query, f"offsets/{batch_id}")

    def read(self, query: RunningQuery, name: str) -> str | None:
        uri = f"{query.checkpoint_location}/{name}"
        try:
            if self._query().is_ours:
                return read_text(uri)
            return _read_by_spark(self.session, uri)[0]
        except CheckpointNotFoundError:
            return None
        except AnalysisException as error:
            if error.getCondition() == "PATH_NOT_FOUND":
                return None
            raise

    def leave(self, query: RunningQuery, name: str, text: str) -> None:
        # Spark itself can write no single file here.
        if self._query().is_ours:
            replace(f"{query.checkpoint_location}/{name}", text.encode())

    def check(self, settings: Settings) -> None:
        if settings.checkpoint_storage == "memory" and settings.checkpoint_dir is None:
            message = (
                "with Spark Connect the storage memory needs a directory: the process that runs "
                f"batches ends with the query, and the state with it; set {PREFIX}checkpoint.dir"
            )
            raise InvalidRequestError(message)

    def needs_rows(self, query: RunningQuery) -> bool:
        del query
        return True  # to find out takes longer than to run a batch once more now and then

    def is_empty(self, rows: DataFrame) -> bool:
        return (
            rows.count() == 0
        )  # all of it is computed; nobody tells how many partitions there are

    def reports(self) -> None:
        """Spark Connect has no accumulators."""

    @contextmanager
    def shipped(self, shipment: Shipment, *, uid: str) -> Iterator[Shipment]:
        if shipment.size > MOST_BYTES_WITH_THE_FUNCTION:
            message = (
                f"operator {uid!r} has {shipment.size} bytes of function, broadcast rows, and state "
                f"that is kept in metadata; with Spark Connect {MOST_BYTES_WITH_THE_FUNCTION} can be "
                f"brought to its subtasks. Set {PREFIX}state.inline-threshold lower, and "
                f"{PREFIX}checkpoint.storage to filesystem, before the state grows that large"
            )
            raise InvalidRequestError(message)
        yield shipment

    def stopped(self, query: RunningQuery, error: BaseException) -> None:
        """The server doesn't wait for the process of a stopped query, and ends it."""

    def jobs(self, run_id: str) -> None:
        del run_id  # Spark Connect tells of no jobs

    def _query(self) -> _OwnQuery:
        if self._known is None:
            self._known = self._looked_up()
        return self._known

    def _looked_up(self) -> _OwnQuery:
        query = self._own_query()
        for location in _locations(self.home, self.session, query):
            try:
                text, uri = _read_by_spark(self.session, f"{location}/metadata")
                metadata = json.loads(text)
            except (PySparkException, ValueError):
                continue  # nothing of Spark's is there
            if metadata["id"] == query.id:
                root = uri.removesuffix("/metadata")
                name = query.name or ""
                return _OwnQuery(query.id, query.runId, root, name, self._reaches(root, text))
        message = (
            f"can't tell where Spark keeps its progress of query {query.id}; give the query the "
            "option checkpointLocation"
        )
        raise InvalidRequestError(message)

    def _own_query(self) -> _StreamingQuery:
        """The query of the client's session whose batch this is.

        Nothing that Spark hands over says which it is. But the session of the batch belongs to that query
        alone: a setting of the session that blackens an id in plans shows in the plan of that query.
        """
        running: list[_StreamingQuery] = list(self.home.streams.active)
        if len(running) > 1:
            running = [query for query in running if self._blackens(query)]
        if len(running) != 1:
            message = f"can't tell which of the session's {len(running)} queries this batch is of"
            raise InvalidRequestError(message)
        return running[0]

    def _blackens(self, query: _StreamingQuery) -> bool:
        with _setting(self.session, _BLACKENED, re.escape(query.id)):
            plan = _plan(query)
        return _MARK in plan and query.id not in plan

    def _reaches(self, root: str, metadata: str) -> bool:
        """Whether Holdfast's own file systems read the same metadata as Spark."""
        try:
            Stores.parse(self.session.conf.getAll, root).use()
            with retry_deadline(_PROBE_DEADLINE_S):
                return read_text(f"{root}/metadata") == metadata
        except CheckpointError:
            return False


def _locations(home: SparkSession, session: SparkSession, query: _StreamingQuery) -> Iterator[str]:
    """Where Spark's checkpoint directory may be, as the user wrote it."""
    options = _sink_options(query)
    if _MARK in options:
        # Paths with "url" in them are blackened by default, by the session that explains.
        with _setting(home, _HIDES_OPTIONS, _NOTHING):
            options = _sink_options(query)
    given = _LOCATION.search(options)
    if given:
        # Options stand behind each other with nothing that sets them off from a path's own commas.
        for end in re.finditer(r", [^,=]+=|$", given["rest"]):
            yield given["rest"][: end.start()]
    directory = session.conf.get(_DEFAULT_LOCATION, None)
    if directory and query.name:
        yield f"{directory}/{query.name}"


def _sink_options(query: _StreamingQuery) -> str:
    """The options that the query was started with, as far as the plan shows them."""
    sinks = _SINK.finditer(_plan(query))
    return next((sink["options"] for sink in sinks if sink["query_id"] == query.id), "")


@contextmanager
def _setting(session: SparkSession, key: str, value: str) -> Iterator[None]:
    """A setting of the session for the block."""
    before = session.conf.get(key, None)
    session.conf.set(key, value)
    try:
        yield
    finally:
        if before is None:
            session.conf.unset(key)
        else:
            session.conf.set(key, before)


def _plan(query: _StreamingQuery) -> str:
    with redirect_stdout(io.StringIO()) as text:
        query.explain(extended=True)
    return text.getvalue()


def _read_by_spark(session: SparkSession, path: str) -> tuple[str, str]:
    """A small file by the file system that Spark itself uses for it, and its full URI."""
    escaped = re.sub(r"([\\{}\[\]*?])", r"\\\1", path)
    frame = session.read.text(escaped, wholetext=True)
    ((text, uri),) = frame.selectExpr("value", "_metadata.file_path").collect()
    scheme, _, rest = unquote(uri).partition(":")
    # Hadoop writes file:/path, and file:///path too.
    return text, f"{scheme}:{rest if rest.startswith('//') else f'//{rest}'}"
