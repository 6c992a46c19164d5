"""`stateful`: an operator with state, as a function for `foreachBatch`."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StructField, StructType

from holdfast.backends import MAX_PARALLELISM, Compression
from holdfast.errors import CheckpointDeclinedError, InvalidRequestError, OutcomeUnknownError
from holdfast.locations import CheckpointStorage, sweep
from holdfast.spark import _query
from holdfast.spark._acknowledgements import COLUMN, Acknowledgement, decode_acknowledgements
from holdfast.spark._coordinator import CheckpointCoordinator, PendingCheckpoint, SparkProgress
from holdfast.spark._functions import StatefulFunction
from holdfast.spark._link import LINK_FILE, Link, encode_link
from holdfast.spark._routing import Routing, arrow_schema, shared
from holdfast.spark._settings import Settings
from holdfast.spark._stores import Stores
from holdfast.spark._subtask import SubtaskRunner

_log = logging.getLogger(__name__)

_ACKNOWLEDGEMENTS = "acknowledgements"

Sink = Callable[[DataFrame, int], object]
"""Takes an operator's output rows and the batch id, and writes them somewhere."""


def stateful(
    function: StatefulFunction,
    *,
    sink: Sink,
    uid: str,
    parallelism: int,
    schema: StructType | str | None = None,
    persist: bool = False,
) -> "StatefulOperator":
    """Make an operator with state of a function; pass the result to `foreachBatch`.

    Every micro-batch is a checkpoint: the state after batch N and Spark's own progress through
    batch N are stored together once the sink has taken the batch. After a crash the query goes
    on from the last completed checkpoint. The sink then may see one batch again, under the same
    batch id and before the state moves on: it must replace what it wrote for that id.

    Args:
        function: The operator; it is pickled to the executors.
        sink: Writes the output rows. It must read them in one action over all of them, and let
            errors through.
        uid: Names the operator's state in checkpoints; keep it for the life of the job.
        parallelism: Number of subtasks, 1 to 32768; each has its own part of the state. Rows are
            dealt to them evenly.
        schema: Spark schema of the output rows, if it isn't that of the input.
        persist: Keep the output rows in Spark's cache while the sink runs, so that it can read
            them in several actions.

    Raises:
        InvalidRequestError: An argument can't be used. Settings are read, and refused, in the
            first micro-batch.
    """
    if not isinstance(function, StatefulFunction):
        message = f"{type(function).__name__} is no StatefulFunction; derive the operator from it"
        raise InvalidRequestError(message)
    if not callable(sink):
        raise InvalidRequestError(f"sink {sink!r} can't be called; it takes rows and a batch id")
    if not isinstance(uid, str) or not uid:
        raise InvalidRequestError(f"uid is {uid!r}; it must be a string that is not empty")
    if type(parallelism) is not int or not 1 <= parallelism <= MAX_PARALLELISM:
        message = (
            f"parallelism is {parallelism!r}; it must be a whole number between 1 and "
            f"{MAX_PARALLELISM}"
        )
        raise InvalidRequestError(message)
    return StatefulOperator(
        _Operator(
            function=function,
            sink=sink,
            uid=uid,
            parallelism=parallelism,
            schema=schema,
            persist=persist,
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operator:
    """What `stateful` was given."""

    function: StatefulFunction
    sink: Sink
    uid: str
    parallelism: int
    schema: StructType | str | None
    persist: bool


class StatefulOperator:
    """An operator with state, to be passed to `foreachBatch`; made by `stateful`.

    Spark calls it once a micro-batch, from the thread of the query.
    """

    def __init__(self, operator: _Operator) -> None:
        self._operator = operator
        self._lock = threading.Lock()
        self._runs: dict[str, _QueryRun] = {}  # by query: it may serve several at once

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        session = _query.session_of(batch)
        query = _query.running_query(session, batch_id)
        with self._lock:
            run = self._runs.get(query.query_id)
        if run is None or run.run_id != query.run_id:
            run = _QueryRun.start(self._operator, session, query)
            with self._lock:
                self._runs[query.query_id] = run
        try:
            run.process(batch, batch_id, query)
        except BaseException:
            with self._lock:  # what storage holds now is for the next run to find out
                self._runs.pop(query.query_id, None)
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """What an operator's plan needs that depends on schemas alone.

    Attributes:
        routing: How rows get to subtasks.
        output_schema: The rows that the operator yields, in Arrow.
        with_acknowledgements: The same for Spark, with the column of acknowledgements behind.
    """

    routing: Routing
    output_schema: pa.Schema
    with_acknowledgements: StructType

    @classmethod
    def of(cls, batch: DataFrame, operator: _Operator) -> "_Shape":
        """The shape for batches like this one."""
        rows = batch
        if operator.schema is not None:
            rows = batch.sparkSession.createDataFrame([], operator.schema)
        # Acknowledgements come in rows of their own, in which all else is null.
        columns = [StructField(column.name, column.dataType) for column in rows.schema]
        return cls(
            routing=Routing.of(batch, parallelism=operator.parallelism, uid=operator.uid),
            output_schema=arrow_schema(rows, uid=operator.uid),
            with_acknowledgements=StructType([*columns, StructField(COLUMN, BinaryType())]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _QueryRun:
    """One run of a query, from its start until it stops or fails."""

    run_id: str
    operator: _Operator
    storage: CheckpointStorage
    stores: Stores
    compression: Compression | None
    job_id: str
    coordinator: CheckpointCoordinator
    finished: "Accumulator[int]"
    shapes: "dict[str, _Shape]" = field(default_factory=dict)

    @classmethod
    def start(
        cls, operator: _Operator, session: SparkSession, query: _query.RunningQuery
    ) -> "_QueryRun":
        settings = Settings.parse(session.conf.getAll)
        settings.stores.use()
        storage = settings.open_storage()
        job_id = settings.job_id or query.query_id
        coordinator = CheckpointCoordinator(
            storage.create_checkpoint_storage(job_id),
            job_id=job_id,
            query_id=query.query_id,
            uid=operator.uid,
            parallelism=operator.parallelism,
            num_retained=settings.num_retained,
            sweep=_sweep_of(settings, job_id),
        )
        _query.guard_against_other_orders(session)
        link = Link(
            checkpoint_dir=settings.checkpoint_dir,
            job_id=job_id,
            storage=settings.checkpoint_storage,
        )
        _query.write_text(session, f"{query.checkpoint_location}/{LINK_FILE}", encode_link(link))
        return cls(
            run_id=query.run_id,
            operator=operator,
            storage=storage,
            stores=settings.stores,
            compression=settings.compression,
            job_id=job_id,
            coordinator=coordinator,
            finished=session.sparkContext.accumulator(0),
        )

    def process(self, batch: DataFrame, batch_id: int, query: _query.RunningQuery) -> None:
        """Run one micro-batch through the operator and the sink, and commit it."""
        pending = self.coordinator.begin(batch_id)
        if pending is None:
            # Operators of Spark's own before this one have to commit their state for the batch too.
            _run(batch)
            return
        try:
            acknowledgements = self._run_sink(batch, pending)
            progress = SparkProgress(
                query_id=query.query_id,
                run_id=query.run_id,
                batch_id=batch_id,
                offsets=query.offsets,
                checkpoint_location=query.checkpoint_location,
                spark_version=_query.spark_version(),
            )
            self.coordinator.complete(pending, acknowledgements, progress)
        except OutcomeUnknownError:
            raise  # it may exist: nothing is deleted
        except BaseException:
            if self.coordinator.abort(pending):
                self._notify("notify_checkpoint_aborted", pending.checkpoint_id)
            raise
        self._notify("notify_checkpoint_complete", pending.checkpoint_id)

    def _run_sink(self, batch: DataFrame, pending: PendingCheckpoint) -> list[Acknowledgement]:
        """Let the sink run the job; the acknowledgements come back through it."""
        session = _query.session_of(batch)
        finished_before = self.finished.value
        with self._output(batch, pending) as output:
            observation = Observation()
            observed = _observe(output, observation)
            if self.operator.persist:
                observed = observed.persist()
            try:
                if self.operator.persist:
                    _run(observed)
                jobs_before = _query.jobs_of(session, self.run_id)
                rows = observed.where(f"{COLUMN} IS NULL").drop(COLUMN)
                self.operator.sink(rows, pending.batch_id)
            finally:
                if self.operator.persist:
                    observed.unpersist()
            failed = _query.failed_jobs(session, self.run_id, jobs_before)
            # With persisted rows a sink may try again; what it did last counts.
            if any(failed[-1:] if self.operator.persist else failed):
                raise self._declined("was told of a failed job, and went on")
            finished = self.finished.value - finished_before
            if finished < self.operator.parallelism:
                # The sink read nothing, or only a glimpse: the state may come from another pass.
                if _query.is_complete(session, observation):
                    observation = Observation()
                    observed = _observe(output, observation)
                _run(observed)
            elif finished > self.operator.parallelism:
                raise self._declined(
                    "runs its rows through the operator more than once, and may hold those of any "
                    "pass (several actions, orderBy and repartitionByRange do that; so does the "
                    "loss of an executor: restart the query then)"
                )
            if not _query.is_complete(session, observation):
                raise self._declined(
                    "reads its rows in a way that can't be observed, such as rdd or foreach"
                )
            return decode_acknowledgements(observation.get[_ACKNOWLEDGEMENTS])

    def _declined(self, what: str) -> CheckpointDeclinedError:
        message = (
            f"the sink of operator {self.operator.uid!r} {what}. It has to read all rows in one "
            "action of the DataFrame and let errors through, or to be used with persist=True"
        )
        return CheckpointDeclinedError(message)

    @contextmanager
    def _output(self, batch: DataFrame, pending: PendingCheckpoint) -> Iterator[DataFrame]:
        """The operator over the batch: its rows, and one acknowledgement from each subtask."""
        shape = self._shape(batch)
        with shared(_query.session_of(batch), pending.assigned) as assigned:
            runner = SubtaskRunner(
                function=self.operator.function,
                uid=self.operator.uid,
                storage=self.storage,
                stores=self.stores,
                compression=self.compression,
                job_id=self.job_id,
                checkpoint_id=pending.checkpoint_id,
                location_reference=pending.location.location_reference,
                restored_checkpoint_id=pending.restored_checkpoint_id,
                assigned=assigned,
                input_schema=shape.routing.input_schema,
                output_schema=shape.output_schema,
                finished=self.finished,
            )
            yield shape.routing.dealt(batch).mapInArrow(runner, shape.with_acknowledgements)

    def _shape(self, batch: DataFrame) -> "_Shape":
        """What follows from the batch's schema; worked out once for each."""
        key = batch.schema.json()
        if key not in self.shapes:
            self.shapes[key] = _Shape.of(batch, self.operator)
        return self.shapes[key]

    def _notify(self, method: str, checkpoint_id: int) -> None:
        """Tell the driver's copy of the operator, if it wants to know; its errors change nothing."""
        told = getattr(self.operator.function, method, None)
        if told is None:
            return
        try:
            told(checkpoint_id)
        except Exception:  # noqa: BLE001  # user code: anything
            _log.exception("operator %r failed in %s", self.operator.uid, method)


def _sweep_of(settings: Settings, job_id: str) -> Callable[[], object] | None:
    """What deletes the leftovers of a job's crashes, if it has a directory."""
    if settings.checkpoint_dir is None:
        return None
    return partial(sweep, settings.checkpoint_dir, job_id, grace_s=settings.orphan_grace_s)


def _observe(output: DataFrame, observation: Observation) -> DataFrame:
    return output.observe(observation, F.expr(f"collect_list({COLUMN}) as {_ACKNOWLEDGEMENTS}"))


def _run(frame: DataFrame) -> None:
    """Compute all rows and keep none."""
    frame.write.format("noop").mode("overwrite").save()
