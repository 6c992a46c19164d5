"""Queries of a classic session, through Spark's JVM."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from py4j.protocol import Py4JError
from pyspark import Broadcast
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import DataFrame, SparkSession

from holdfast.common import Clock
from holdfast.errors import InvalidRequestError
from holdfast.spark.engines.batch_errors import QueryStoppedError, filter_py4j_log, is_interruption
from holdfast.spark.engines.engine import RunningQuery
from holdfast.spark.engines.jobs import Jobs, java_class
from holdfast.spark.settings import Settings
from holdfast.spark.subtask import TaskPayload

_MAX_INLINE_BYTES = 256 << 10
"""PySpark broadcasts functions of more than 1 MiB itself, in every batch, and never deletes the file."""


class _Lists(AccumulatorParam[list[bytes]]):
    """Concatenates lists."""

    def zero(self, value: list[bytes]) -> list[bytes]:
        del value
        return []

    def addInPlace(self, value1: list[bytes], value2: list[bytes]) -> list[bytes]:  # noqa: N802
        value1 += value2
        return value1


@dataclass(frozen=True, slots=True)
class ClassicEngine:
    """An `Engine` over a session of this process."""

    session: SparkSession
    clock: Clock

    def running_query(self, known: RunningQuery | None = None) -> RunningQuery:
        query_id = self.session.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not query_id:
            raise InvalidRequestError("stateful(...) runs only as the function of foreachBatch")
        if known is not None and known.query_id == query_id and _is_active(known):
            return known  # a query has one active run
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

    def executors(self) -> frozenset[str]:
        context: Any = self.session.sparkContext._jsc
        addresses = context.sc().getExecutorMemoryStatus().keys().mkString(" ").split()
        driver = context.sc().env().blockManager().blockManagerId().hostPort()
        return frozenset(addresses) - {driver}

    def offsets(self, query: RunningQuery, batch_id: int) -> str | None:
        # From Spark's memory: the file may be in a remote store.
        log = query.execution.offsetLog()
        entry = log.get(batch_id)
        if not entry.isDefined():
            return None
        text = java_class(self.session, "java.io.ByteArrayOutputStream")()
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

    def write(self, query: RunningQuery, name: str, text: str) -> None:
        file_system, path = self._hadoop(f"{query.checkpoint_location}/{name}")
        stream = file_system.create(path, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def check(self, settings: Settings) -> None:
        pass

    def needs_rows(self, query: RunningQuery) -> bool:
        # A watermark is needed even if a select has dropped its column.
        patterns = java_class(self.session, "org.apache.spark.sql.catalyst.trees.TreePattern")
        if query.execution.logicalPlan().containsPattern(patterns.EVENT_TIME_WATERMARK()):
            return True
        file_system, path = self._hadoop(f"{query.checkpoint_location}/state")
        return bool(file_system.exists(path))

    def last_progress(self, query: RunningQuery) -> str | None:
        try:
            progress = query.execution.lastProgress()
            return None if progress is None else str(progress.json())
        except Py4JError:  # Spark has ended
            return None

    def last_input_rows(self, query: RunningQuery) -> int | None:
        progress = query.execution.lastProgress()
        return None if progress is None else int(progress.numInputRows())

    def is_empty(self, rows: DataFrame) -> bool:
        # Stateful operators of Spark have partitions even without rows.
        return bool(cast("Any", rows)._jdf.queryExecution().toRdd().getNumPartitions() == 0)

    def reports(self) -> Accumulator[list[bytes]]:
        return self.session.sparkContext.accumulator([], _Lists())

    @contextmanager
    def send(
        self, payload: TaskPayload, *, uid: str
    ) -> Iterator[TaskPayload | Broadcast[TaskPayload]]:
        del uid  # there is no limit
        if payload.size <= _MAX_INLINE_BYTES:
            yield payload
            return
        broadcast = self.session.sparkContext.broadcast(payload)
        try:
            yield broadcast
        finally:
            broadcast.destroy()

    def stop_error(self, query: RunningQuery, error: BaseException) -> QueryStoppedError | None:
        filter_py4j_log()
        try:
            execution = self._execution(query.query_id)
            is_stopped = execution is not None and not execution.isActive()
            is_quiet = is_stopped and is_interruption(error, query.run_id)
        except Py4JError:
            return None  # Spark has ended: the original error is more useful
        return QueryStoppedError() if is_quiet else None

    def jobs(self, run_id: str) -> Jobs:
        jobs = Jobs(self.session, run_id, self.clock)
        jobs.enter_group()
        return jobs

    def _execution(self, query_id: str) -> Any:
        queries = self.session._jsparkSession.sharedState().activeStreamingQueries()
        return queries.get(java_class(self.session, "java.util.UUID").fromString(query_id))

    def _hadoop(self, uri: str) -> tuple[Any, Any]:
        """Return Spark's file system for a URI, and the path in it."""
        path = java_class(self.session, "org.apache.hadoop.fs.Path")(uri)
        configuration = self.session._jsparkSession.sessionState().newHadoopConf()
        return path.getFileSystem(configuration), path


def _is_active(query: RunningQuery) -> bool:
    try:
        return bool(query.execution.isActive())
    except Py4JError:  # its JVM has ended
        return False
