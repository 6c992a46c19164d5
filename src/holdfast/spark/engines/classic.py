"""Queries of a classic session, by way of Spark's JVM side."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.core.broadcast import Broadcast
from pyspark.sql import DataFrame, SparkSession

from holdfast.common import Clock
from holdfast.errors import CheckpointDeclinedError, InvalidRequestError
from holdfast.spark.engines.engine import RunningQuery
from holdfast.spark.engines.stopping import (
    QueryStoppedError,
    is_interruption,
    keep_py4j_quiet,
)
from holdfast.spark.settings import Settings
from holdfast.spark.subtask import Shipment, name_in_plans

_MOST_BYTES_WITH_THE_FUNCTION = 256 << 10
"""A function over a MiB PySpark broadcasts by itself, in every batch, and never deletes the file."""

_DECIDES_LATER = ("AdaptiveSparkPlan", "Exchange")
"""Words in plans of which Spark has to run a part to know the partitions, or runs a part when asked."""

_BUS_TIMEOUT_S = 120.0
_POLL_S = 0.05
_JOB_GROUP = "spark.jobGroup.id"


class _Lists(AccumulatorParam[list[bytes]]):
    """Lists that are put behind each other."""

    def zero(self, value: list[bytes]) -> list[bytes]:
        del value
        return []

    def addInPlace(self, value1: list[bytes], value2: list[bytes]) -> list[bytes]:  # noqa: N802
        value1 += value2
        return value1


@dataclass(frozen=True, slots=True)
class ClassicEngine:
    """An `Engine` over a session of this process.

    Attributes:
        session: The session of the batch.
        clock: Says for how long Spark's listeners are waited for.
    """

    session: SparkSession
    clock: Clock

    def running_query(self) -> RunningQuery:
        query_id = self.session.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not query_id:
            raise InvalidRequestError("stateful(...) runs only as the function of foreachBatch")
        execution = self._execution(query_id)
        return RunningQuery(
            query_id=query_id,
            run_id=execution.runId().toString(),
            checkpoint_location=execution.resolvedCheckpointRoot(),
            name=execution.name() or "",
            execution=execution,
        )

    def default_parallelism(self) -> int:
        return int(self.session.sparkContext.defaultParallelism)

    def offsets(self, query: RunningQuery, batch_id: int) -> str | None:
        # From Spark's memory: the file can be in a store that is far away.
        log = query.execution.offsetLog()
        entry = log.get(batch_id)
        if not entry.isDefined():
            return None
        text = _java(self.session, "java.io.ByteArrayOutputStream")()
        log.serialize(entry.get(), text)
        return str(text.toString("UTF-8"))

    def read(self, query: RunningQuery, name: str) -> str | None:
        file_system, path = self._hadoop(f"{query.checkpoint_location}/{name}")
        if not file_system.exists(path):
            return None
        stream = file_system.open(path)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def leave(self, query: RunningQuery, name: str, text: str) -> None:
        file_system, path = self._hadoop(f"{query.checkpoint_location}/{name}")
        stream = file_system.create(path, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def check(self, settings: Settings) -> None:
        pass

    def needs_rows(self, query: RunningQuery) -> bool:
        return self._has_watermark(query) or self._has_own_state(query)

    def is_empty(self, rows: DataFrame) -> bool:
        # Operators with state have partitions also if they have no rows.
        return bool(cast("Any", rows)._jdf.queryExecution().toRdd().getNumPartitions() == 0)

    def reports(self) -> Accumulator[list[bytes]]:
        return self.session.sparkContext.accumulator([], _Lists())

    @contextmanager
    def shipped(self, shipment: Shipment, *, uid: str) -> Iterator[Shipment | Broadcast[Shipment]]:
        del uid  # there is no limit to tell of
        if shipment.size <= _MOST_BYTES_WITH_THE_FUNCTION:
            yield shipment
            return
        broadcast = self.session.sparkContext.broadcast(shipment)
        try:
            yield broadcast
        finally:
            broadcast.destroy()

    def stopped(self, query: RunningQuery, error: BaseException) -> QueryStoppedError | None:
        keep_py4j_quiet()
        try:
            execution = self._execution(query.query_id)
            is_stopped = execution is not None and not execution.isActive()
            is_quiet = is_stopped and is_interruption(error, query.run_id)
        except Py4JError:
            return None  # Spark is gone: the error itself says more
        return QueryStoppedError() if is_quiet else None

    def jobs(self, run_id: str) -> "ClassicJobs":
        jobs = ClassicJobs(self.session, run_id, self.clock)
        jobs.begin()
        return jobs

    def _has_watermark(self, query: RunningQuery) -> bool:
        """Whether the query's plan looks at event times; behind a select no column need say so."""
        plan = query.execution.logicalPlan()
        patterns = _java(self.session, "org.apache.spark.sql.catalyst.trees.TreePattern")
        return bool(plan.containsPattern(patterns.EVENT_TIME_WATERMARK()))

    def _has_own_state(self, query: RunningQuery) -> bool:
        file_system, path = self._hadoop(f"{query.checkpoint_location}/state")
        return bool(file_system.exists(path))

    def _execution(self, query_id: str) -> Any:
        queries = self.session._jsparkSession.sharedState().activeStreamingQueries()
        return queries.get(_java(self.session, "java.util.UUID").fromString(query_id))

    def _hadoop(self, uri: str) -> tuple[Any, Any]:
        """Spark's own file system for a URI, and the path in it."""
        path = _java(self.session, "org.apache.hadoop.fs.Path")(uri)
        configuration = self.session._jsparkSession.sessionState().newHadoopConf()
        return path.getFileSystem(configuration), path


@dataclass(frozen=True, slots=True)
class ClassicJobs:
    """`Jobs` of a run: the jobs in the group that Spark makes for the run."""

    session: SparkSession
    run_id: str
    clock: Clock

    def begin(self) -> None:
        """Put the thread's jobs into that group again; a former batch may have left it."""
        self.session.sparkContext.setLocalProperty(_JOB_GROUP, self.run_id)

    def are_all(self) -> bool:
        return self.session.sparkContext.getLocalProperty(_JOB_GROUP) == self.run_id

    def ids(self) -> frozenset[int]:
        tracker = cast("Any", self.session.sparkContext)._jsc.statusTracker()
        jobs = tracker.getJobIdsForGroup(self.run_id)
        # As text: Spark remembers a thousand jobs, and each number would be a call to the JVM.
        text = _java(self.session, "java.util.Arrays").toString(jobs)
        return frozenset(map(int, text.strip("[]").split(", "))) if len(text) > 2 else frozenset()

    def come_from(self, rows: DataFrame, uid: str) -> bool:
        plan = cast("Any", rows)._jdf.queryExecution().analyzed().toString()
        return f"{name_in_plans(uid)}(" in plan

    def partitions(self, rows: DataFrame) -> int | None:
        execution = cast("Any", rows)._jdf.queryExecution()
        plan = execution.executedPlan().toString()
        if any(word in plan for word in _DECIDES_LATER):
            return None
        return int(execution.toRdd().getNumPartitions())

    def failed(self, known: frozenset[int]) -> list[bool]:
        _let_listeners_catch_up(self.session, self.clock)
        while "RUNNING" in (statuses := self._statuses(known)):
            self.clock.sleep(_POLL_S)
        return [status == "FAILED" for status in statuses]

    def _statuses(self, known: frozenset[int]) -> list[str]:
        """The status of each job that is not `known`; empty of a job that Spark has forgotten."""
        tracker = cast("Any", self.session.sparkContext)._jsc.statusTracker()
        infos = [tracker.getJobInfo(job) for job in sorted(self.ids() - known)]
        return ["" if info is None else info.status().toString() for info in infos]


def _let_listeners_catch_up(session: SparkSession, clock: Clock) -> None:
    bus = cast("Any", session.sparkContext)._jsc.sc().listenerBus()
    deadline = clock.monotonic_s() + _BUS_TIMEOUT_S
    while True:
        try:
            bus.waitUntilEmpty()
        except Py4JJavaError as error:  # it gives up after ten seconds
            if clock.monotonic_s() > deadline:
                message = "Spark's listeners are too far behind to tell what the sink's job did"
                raise CheckpointDeclinedError(message) from error
        else:
            return


def _java(session: SparkSession, name: str) -> Any:
    """A class of Java. By way of `session._jvm` the JVM would look for each part of the name."""
    jvm = session._jvm
    if jvm is None:
        raise Py4JError("no connection to Spark's JVM")
    return JavaClass(name, jvm._gateway_client)
