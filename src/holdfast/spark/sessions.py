"""Streaming queries and data sources of the sessions of this process."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from pyspark import SparkContext
from pyspark.errors import AnalysisException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.errors import InvalidRequestError
from holdfast.spark.compat import (
    IS_PYSPARK_4,
    active_java_session,
    java_settings,
    require_pyspark_4,
)

if TYPE_CHECKING:  # PySpark 3.5 does not have them
    from pyspark.sql.datasource import DataSource


@dataclass(frozen=True, slots=True)
class KnownQuery:
    """A streaming query of this process, running or not, with Spark's id, checkpoint directory and configuration."""

    query_id: str
    checkpoint_location: str
    configuration: dict[str, str]


def known_query(query: StreamingQuery) -> KnownQuery:
    """Return the properties of a query. Raises `InvalidRequestError`."""
    if not hasattr(query, "_jsq"):
        message = "Spark Connect doesn't report the checkpointLocation of a query; pass its URI"
        raise InvalidRequestError(message)
    execution = cast("Any", query)._jsq.streamingQuery()
    configuration = execution.sparkSessionForStream().conf()
    return KnownQuery(
        query_id=query.id,
        checkpoint_location=str(execution.resolvedCheckpointRoot()),
        configuration=java_settings(configuration),
    )


def configuration() -> dict[str, str]:
    """Return Spark's configuration of this thread; empty without a classic session."""
    session = classic_session()
    if session is None:
        return {}
    # From the JVM: PySpark returns the same session in all threads, which may be the session of a batch.
    java_session = active_java_session(session) or session._jsparkSession
    return java_settings(java_session.conf())


def active_query_ids() -> frozenset[str]:
    session = classic_session()
    if session is None:
        return frozenset()
    queries = session._jsparkSession.sharedState().activeStreamingQueries()
    return frozenset(str(query_id.toString()) for query_id in list(queries.keySet()))


def is_application_alive() -> bool:
    """Return whether Spark runs in this process; its executors also keep, and store, state of stopped queries."""
    return SparkContext._active_spark_context is not None  # there is no public API


def check_alive(session: SparkSession) -> None:
    """Wait for an answer of the JVM of a classic session. Raises `Py4JError` or `OSError` if it has ended."""
    jvm: Any = session._jvm
    jvm.java.lang.System.nanoTime()


def state_repartitioner() -> Callable[[str, int], None]:
    """Return a function that repartitions the state of a stopped query, which Spark logs as a batch.

    Its arguments are the query's checkpointLocation and the number of partitions. Raises `InvalidRequestError` if this
    version of Spark, or the session, does not support that.
    """
    manager = getattr(classic_session(), "_streamingCheckpointManager", None)
    if manager is None or not is_application_alive():
        message = "shuffle_partitions needs a classic session of Spark 4.2 or later in this process"
        raise InvalidRequestError(message)
    repartition: Callable[[str, int], None] = manager.repartition
    return repartition


def register_source(session: SparkSession, source: "type[DataSource]") -> None:
    """Register a data source of Holdfast in a session.

    Spark finds sources in modules named `pyspark_…`, but not if the path of its Python contains a space. It
    refuses to register a source that it has found, and logs a warning for one that is registered.

    Raises:
        InvalidRequestError: PySpark is 3.5, which has no data sources in Python.
    """
    require_pyspark_4("a data source in Python", "use a later PySpark")
    registered = _registered.setdefault(session, set())
    if source in registered:
        return
    active = SparkSession.getActiveSession()
    try:
        _activate(session)  # Spark looks up the source in the active session
        session.dataSource.register(source)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    finally:
        if active is not None:
            _activate(active)
    registered.add(source)


def _activate(session: SparkSession) -> None:
    if hasattr(session, "_jsparkSession"):  # Spark Connect has one session
        jvm: Any = session._jvm
        jvm.SparkSession.setActiveSession(session._jsparkSession)


_registered: "WeakKeyDictionary[SparkSession, set[type[DataSource]]]" = WeakKeyDictionary()


def any_session() -> SparkSession:
    """Return the active session, or the one that this process created. Raises `InvalidRequestError`."""
    session = _known_session() or _connect_session()
    if session is None:
        raise InvalidRequestError(
            "a schema in place of rows needs a Spark session; create it before keyed(...)"
        )
    return session


def _known_session() -> SparkSession | None:
    return SparkSession.getActiveSession() or SparkSession._instantiatedSession


def _connect_session() -> SparkSession | None:
    """Return a session of Spark Connect that was made with `create()`, which PySpark's public functions don't find."""
    module: Any = sys.modules.get("pyspark.sql.connect.session") if IS_PYSPARK_4 else None
    if module is None:
        return None
    sessions = module.SparkSession
    session: SparkSession | None = sessions.getActiveSession() or sessions._get_default_session()
    return session


def classic_session() -> SparkSession | None:
    """Return the active session, or the one that this process created, unless it is one of Spark Connect."""
    session = _known_session()
    return session if hasattr(session, "_jsparkSession") else None


def quote_name(name: str) -> str:
    """Quote the name of a column, which may contain dots and backticks."""
    quoted = name.replace("`", "``")
    return f"`{quoted}`"


def column_named(name: str) -> Column:
    """Return the column of exactly this name."""
    return F.col(quote_name(name))
