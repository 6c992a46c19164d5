"""What Spark knows of the running query. The one file that reaches into Spark's JVM side."""

import time
from dataclasses import dataclass
from typing import Any, cast

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.errors import CheckpointDeclinedError, InvalidRequestError

_BUS_TIMEOUT_S = 120.0

_SHUFFLE_CHECKSUMS = (
    "spark.sql.shuffle.orderIndependentChecksum.enabled",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch",
)


@dataclass(frozen=True, slots=True)
class RunningQuery:
    """The streaming query in whose `foreachBatch` this thread is.

    Attributes:
        query_id: Stays the same for the life of Spark's checkpointLocation.
        run_id: New at each start of the query.
        checkpoint_location: Spark's own checkpoint directory for it.
        offsets: Spark's offset log entry of the batch, its text as it stands in the file.
    """

    query_id: str
    run_id: str
    checkpoint_location: str
    offsets: str


def session_of(frame: DataFrame) -> SparkSession:
    """The session of a batch, which has to be a classic one.

    Raises:
        InvalidRequestError: It is a Spark Connect session.
    """
    session = frame.sparkSession
    if not hasattr(session, "_jsparkSession"):
        message = "Spark Connect sessions are not supported by this version; use a classic one"
        raise InvalidRequestError(message)
    return session


def _query_id_of(session: SparkSession) -> str:
    """Id of the query whose batch this thread runs.

    Raises:
        InvalidRequestError: It runs none.
    """
    query_id = session.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not query_id:
        raise InvalidRequestError("stateful(...) runs only as the function of foreachBatch")
    return query_id


def running_query(session: SparkSession, batch_id: int) -> RunningQuery:
    """What Spark has noted about the query and its current batch.

    Raises:
        InvalidRequestError: This thread runs no batch of a streaming query.
    """
    query_id = _query_id_of(session)
    jvm = _jvm(session)
    execution = (
        session._jsparkSession.sharedState()
        .activeStreamingQueries()
        .get(jvm.java.util.UUID.fromString(query_id))
    )
    root = execution.resolvedCheckpointRoot()
    return RunningQuery(
        query_id=query_id,
        run_id=execution.runId().toString(),
        checkpoint_location=root,
        offsets=_read_text(session, f"{root}/offsets/{batch_id}"),
    )


def has_own_state(session: SparkSession, query: RunningQuery) -> bool:
    """Whether Spark itself keeps state for the query, as for its aggregations and joins."""
    file_system, path = _hadoop(session, f"{query.checkpoint_location}/state")
    return bool(file_system.exists(path))


def guard_against_other_orders(session: SparkSession) -> None:
    """Let Spark notice when a part of a shuffle that it repeats comes out differently.

    Which subtask a row goes to depends on the order of rows; Spark then repeats the whole stage.
    Spark 4.3 does so by default, 4.1 only when told. The session is the query's own copy: no
    other query sees the change.
    """
    for key in _SHUFFLE_CHECKSUMS:
        session.conf.set(key, "true")


def is_complete(session: SparkSession, observation: Observation) -> bool:
    """Whether a job has run that the observation could see.

    `Observation.get` would wait for ever if there was none.

    Raises:
        CheckpointDeclinedError: Spark's listeners are too far behind to tell.
    """
    result = cast("Any", observation)._jo.future()
    if not result.isCompleted():
        # It comes over the listener bus, some time after the job's end.
        _let_listeners_catch_up(session)
    return bool(result.isCompleted())


def has_seen_rows(observation: Observation) -> bool:
    """Whether a complete observation has anything.

    If Spark found that there is nothing to compute it has an empty row, at which `get` fails.
    """
    row = cast("Any", observation)._jo.future().value().get().get()
    return int(row.length()) > 0


def failed_jobs(session: SparkSession, run_id: str, known: frozenset[int]) -> list[bool]:
    """Which of the query's jobs that are not `known` have failed, in the order they were begun."""
    _let_listeners_catch_up(session)
    tracker = session.sparkContext.statusTracker()
    found = [tracker.getJobInfo(job) for job in sorted(jobs_of(session, run_id) - known)]
    return [one is not None and one.status == "FAILED" for one in found]


def jobs_of(session: SparkSession, run_id: str) -> frozenset[int]:
    """Ids of all jobs that a run of a query has started, as far as Spark remembers them."""
    return frozenset(session.sparkContext.statusTracker().getJobIdsForGroup(run_id))


def _let_listeners_catch_up(session: SparkSession) -> None:
    bus = cast("Any", session.sparkContext)._jsc.sc().listenerBus()
    deadline = time.monotonic() + _BUS_TIMEOUT_S
    while True:
        try:
            bus.waitUntilEmpty()
        except Py4JJavaError as error:  # it gives up after ten seconds
            if time.monotonic() > deadline:
                message = "Spark's listeners are too far behind to tell what the sink's job did"
                raise CheckpointDeclinedError(message) from error
        else:
            return


def spark_version() -> str:
    """Version of PySpark."""
    return pyspark.__version__


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
    """Spark's configuration as this thread has it; empty where no classic session is."""
    session = _any_session()
    if session is None:
        return {}
    # Spark's own answer: PySpark's is one for all threads, also that of a batch of some query.
    active = session._get_j_spark_session_class(_jvm(session)).getActiveSession()
    java_session = active.get() if active.isDefined() else session._jsparkSession
    return dict(java_session.conf().getAllAsJava())


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


def _read_text(session: SparkSession, uri: str) -> str:
    """A small file, read by the file system that Spark itself uses for it."""
    jvm = _jvm(session)
    file_system, path = _hadoop(session, uri)
    stream = file_system.open(path)
    try:
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def write_text(session: SparkSession, uri: str, text: str) -> None:
    """Write a small file anew, by the file system that Spark itself uses for it."""
    file_system, path = _hadoop(session, uri)
    stream = file_system.create(path, True)
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()


def _hadoop(session: SparkSession, uri: str) -> tuple[Any, Any]:
    """Spark's own file system for a URI, and the path in it."""
    path = _jvm(session).org.apache.hadoop.fs.Path(uri)
    return path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf()), path


def _jvm(session: SparkSession) -> Any:
    jvm = session._jvm
    if jvm is None:
        raise Py4JError("no connection to Spark's JVM")
    return jvm
