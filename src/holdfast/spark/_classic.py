"""Queries of a classic session. The one file that reaches into Spark's JVM side."""

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.accumulators import Accumulator
from pyspark.core.broadcast import Broadcast
from pyspark.sql import Observation, SparkSession

from holdfast.errors import CheckpointDeclinedError, InvalidRequestError
from holdfast.spark._engine import RunningQuery
from holdfast.spark._routing import shipped
from holdfast.spark._settings import Settings
from holdfast.spark._subtask import Shipment

_BUS_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class ClassicEngine:
    """An `Engine` over a session of this process."""

    session: SparkSession

    def running_query(self, batch_id: int) -> RunningQuery:
        query_id = _query_id_of(self.session)
        jvm = _jvm(self.session)
        execution = (
            self.session._jsparkSession.sharedState()
            .activeStreamingQueries()
            .get(jvm.java.util.UUID.fromString(query_id))
        )
        root = execution.resolvedCheckpointRoot()
        return RunningQuery(
            query_id=query_id,
            run_id=execution.runId().toString(),
            checkpoint_location=root,
            offsets=_read_text(self.session, f"{root}/offsets/{batch_id}"),
        )

    def check(self, settings: Settings) -> None:
        pass

    def has_own_state(self, query: RunningQuery) -> bool:
        state = f"{query.checkpoint_location}/state"
        path = _jvm(self.session).org.apache.hadoop.fs.Path(state)
        configuration = self.session._jsparkSession.sessionState().newHadoopConf()
        return bool(path.getFileSystem(configuration).exists(path))

    def counter(self) -> Accumulator[int]:
        return self.session.sparkContext.accumulator(0)

    def shipped(
        self, shipment: Shipment, *, uid: str
    ) -> AbstractContextManager[Shipment | Broadcast[Shipment]]:
        del uid  # there is no limit to tell of
        return shipped(self.session, shipment)

    def jobs(self, run_id: str) -> "ClassicJobs":
        return ClassicJobs(self.session, run_id)


@dataclass(frozen=True, slots=True)
class ClassicJobs:
    """`Jobs` of a run."""

    session: SparkSession
    run_id: str

    def ids(self) -> frozenset[int]:
        return frozenset(self.session.sparkContext.statusTracker().getJobIdsForGroup(self.run_id))

    def failed(self, known: frozenset[int]) -> list[bool]:
        _let_listeners_catch_up(self.session)
        tracker = self.session.sparkContext.statusTracker()
        found = [tracker.getJobInfo(job) for job in sorted(self.ids() - known)]
        return [one is not None and one.status == "FAILED" for one in found]

    def is_complete(self, observation: Observation) -> bool:
        result = cast("Any", observation)._jo.future()
        if not result.isCompleted():
            # It comes over the listener bus, some time after the job's end.
            _let_listeners_catch_up(self.session)
        return bool(result.isCompleted())


def _query_id_of(session: SparkSession) -> str:
    """Id of the query whose batch this thread runs.

    Raises:
        InvalidRequestError: It runs none.
    """
    query_id = session.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not query_id:
        raise InvalidRequestError("stateful(...) runs only as the function of foreachBatch")
    return query_id


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


def _read_text(session: SparkSession, uri: str) -> str:
    """A small file, read by the file system that Spark itself uses for it."""
    jvm = _jvm(session)
    path = jvm.org.apache.hadoop.fs.Path(uri)
    stream = path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf()).open(path)
    try:
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def _jvm(session: SparkSession) -> Any:
    jvm = session._jvm
    if jvm is None:
        raise Py4JError("no connection to Spark's JVM")
    return jvm
