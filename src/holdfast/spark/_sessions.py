"""What the sessions of this process know of streaming queries, for those that look at them from outside."""

from dataclasses import dataclass
from typing import Any, cast

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class KnownQuery:
    """A streaming query of this process, running or not.

    Attributes:
        query_id: Spark's id of it.
        checkpoint_location: Spark's own checkpoint directory for it.
        configuration: Spark's configuration as the query has it.
        sink: How Spark describes its sink; None before its first batch.
    """

    query_id: str
    checkpoint_location: str
    configuration: dict[str, str]
    sink: str | None


def known_query(query: StreamingQuery) -> KnownQuery:
    """What Spark says of a query.

    Raises:
        InvalidRequestError: It belongs to a Spark Connect session.
    """
    if not hasattr(query, "_jsq"):
        message = "Spark Connect doesn't say where a query has its checkpointLocation; give its URI"
        raise InvalidRequestError(message)
    execution = cast("Any", query)._jsq.streamingQuery()
    progress = query.lastProgress
    return KnownQuery(
        query_id=query.id,
        checkpoint_location=str(execution.resolvedCheckpointRoot()),
        configuration=dict(execution.sparkSessionForStream().conf().getAllAsJava()),
        sink=None if progress is None else str(progress["sink"]["description"]),
    )


def configuration() -> dict[str, str]:
    """Spark's configuration in this process; empty where no classic session is."""
    session = _any_session()
    return {} if session is None else dict(session.conf.getAll)


def active_query_ids() -> frozenset[str]:
    """Ids of the streaming queries that run in this process."""
    session = _any_session()
    if session is None:
        return frozenset()
    queries = session._jsparkSession.sharedState().activeStreamingQueries()
    return frozenset(str(one.toString()) for one in list(queries.keySet()))


def repartition(checkpoint_location: str, partitions: int) -> None:
    """Spread the state of a stopped query over so many partitions; Spark notes that as a batch.

    Raises:
        InvalidRequestError: This Spark, or the session, can't.
    """
    manager = getattr(_any_session(), "_streamingCheckpointManager", None)
    if manager is None:
        message = "shuffle_partitions needs a classic session of Spark 4.2 or later in this process"
        raise InvalidRequestError(message)
    manager.repartition(checkpoint_location, partitions)


def _any_session() -> SparkSession | None:
    session = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    return session if hasattr(session, "_jsparkSession") else None
