"""One micro-batch: its operators are applied, the sink runs, the acknowledgements are collected."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any, Self, cast

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, StructField, StructType

from holdfast.backends.functions import BatchTimes
from holdfast.backends.subtask import OperatorKey
from holdfast.errors import CheckpointDeclinedError, InvalidRequestError
from holdfast.spark.engines import Engine, Jobs
from holdfast.spark.operators import BroadcastProcessFunction, Operator, Routing, settled_table
from holdfast.spark.query.applied_operator import AppliedOperator
from holdfast.spark.query.frames import acknowledgements_in, compute, readable, rows_in
from holdfast.spark.query.pending_checkpoint import PendingCheckpoint
from holdfast.spark.query.running_operator import RunningOperator
from holdfast.spark.subtask import COLUMN, Acknowledgement, JobStorage, Shipment, SubtaskRunner

_current: ContextVar["BatchRun | None"] = ContextVar("holdfast_batch", default=None)


def current_batch() -> "BatchRun":
    """The batch that this thread is running.

    Raises:
        InvalidRequestError: This thread runs no batch.
    """
    batch = _current.get()
    if batch is None:
        message = (
            "an operator is applied outside of a micro-batch; pass the function that applies it, "
            "and the operator, to checkpointed(...), and that to foreachBatch"
        )
        raise InvalidRequestError(message)
    return batch


def check_no_batch() -> None:
    """Refuse to begin a batch inside of another batch.

    Raises:
        InvalidRequestError: This thread runs a batch already.
    """
    if _current.get() is not None:
        message = (
            "an operator is called by a function that runs in a batch with state itself; pass the "
            "operator to checkpointed(...) too, and call its apply(...)"
        )
        raise InvalidRequestError(message)


class BatchRun:
    """A micro-batch that is being run. Use it in a single `with` block.

    Args:
        engine: The query's way to Spark.
        run_id: Spark's id of the query's run.
        pending: The checkpoint that the batch is to complete.
        operators: The query's operators by uid.
        job: Where the query's state is kept.
        times: The times of the batch.
        application_id: Returns the id that sinks know the query by.

    Attributes:
        application_id: As given.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        run_id: str,
        pending: PendingCheckpoint,
        operators: Mapping[str, RunningOperator],
        job: JobStorage,
        times: BatchTimes,
        application_id: Callable[[], str],
    ) -> None:
        self.application_id = application_id
        self._engine = engine
        self._jobs = engine.jobs(run_id)
        self._pending = pending
        self._operators = operators
        self._job = job
        self._times = times
        self._applied: dict[str, AppliedOperator] = {}
        self._kept: dict[str, DataFrame] = {}  # outputs that were computed at once
        self._cleanup = ExitStack()
        self._jobs_before: frozenset[int] = frozenset()

    def __enter__(self) -> Self:
        if self._jobs is not None:
            self._jobs_before = self._jobs.ids()
            for running in self._operators.values():
                self._cleanup.callback(running.arrived.clear)  # state can be in it
        self._cleanup.callback(_current.reset, _current.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.clear()  # Spark lets go of the rows when nobody refers to them
        self._cleanup.close()

    def apply(self, operator: Operator, rows: DataFrame, broadcast: DataFrame | None) -> DataFrame:
        """Run rows through an operator: when the output is read if jobs can be watched, else at once.

        Raises:
            InvalidRequestError: The query has no such operator, or has applied it before in the batch, or
                the rows don't suit the operator.
        """
        uid = operator.uid
        running = self._operators.get(uid)
        if running is None or not self._are_one(running.operator, operator):
            message = (
                f"operator {uid!r} is none of this query's, which are {sorted(self._operators)}; "
                "pass this very one to checkpointed(...) too"
            )
            raise InvalidRequestError(message)
        if uid in self._applied or uid in self._kept:
            message = (
                f"operator {uid!r} is applied twice in a batch; its state has one stream of rows. "
                "Unite the rows first, or make two operators with uids of their own"
            )
            raise InvalidRequestError(message)
        rows = running.prepared(readable(rows, f"rows of operator {uid!r}"))
        if operator.begin is not None and uid in self._pending.new:
            rows = operator.begin(rows)
        output = self._output(running, rows, broadcast)
        if self._jobs is None:
            # If a block is lost from now on, reading it fails: rows are never computed anew.
            kept = self._kept[uid] = output.localCheckpoint(eager=True)
            return rows_in(kept)
        applied = self._applied[uid] = AppliedOperator(
            operator, rows, output, running.arrived, self._pending.checkpoint_id
        )
        if operator.persist:
            applied.output = output.persist()
            self._cleanup.callback(applied.output.unpersist)
            compute(applied.output)
        return applied.output

    def _are_one(self, known: Operator, given: Operator) -> bool:
        """Whether both are the same operator; in the process of Spark Connect they are copies."""
        return known is given if self._jobs else known.is_like(given)

    def _output(
        self, running: RunningOperator, rows: DataFrame, broadcast: DataFrame | None
    ) -> DataFrame:
        """The operator's output over the rows, with a column for acknowledgements where they come as rows."""
        operator = running.operator
        assigned = self._pending.assigned[operator.uid]
        shape = running.shape(rows, assigned.max_parallelism)
        self._check_key_types(operator, shape.routing.key_types)
        forwarded = self._forwarded(operator, rows, shape.routing) if operator.forward else None
        shipment = Shipment(
            _pickled(operator), assigned.subtasks, self._broadcast_rows(operator, broadcast)
        )
        runner = SubtaskRunner(
            uid=operator.uid,
            job=self._job,
            checkpoint_id=self._pending.checkpoint_id,
            location_reference=self._pending.location.location_reference,
            restored_checkpoint_id=self._pending.restored_checkpoint_id,
            shipment=self._cleanup.enter_context(self._engine.shipped(shipment, uid=operator.uid)),
            parallelism=operator.parallelism,
            is_dealt=forwarded is None,
            key=OperatorKey(shape.routing.key, assigned.max_parallelism) if operator.key else None,
            may_refer=self._pending.may_refer[operator.uid],
            input_schema=shape.routing.input_schema,
            output_schema=shape.output_schema,
            reports=running.reports,
            times=self._times,
        )
        schema = shape.spark_schema
        if running.reports is None:
            schema = StructType([*schema, StructField(COLUMN, BinaryType())])
        routed = forwarded
        if routed is None:
            routed = shape.routing.dealt(rows, self._times.late_watermark)
        return routed.mapInArrow(runner, schema)

    def _forwarded(self, operator: Operator, rows: DataFrame, routing: Routing) -> DataFrame | None:
        """The rows in their own partitions, one for each subtask; None if rows have to be dealt."""
        if self._jobs is None:
            return None
        late_watermark = self._times.late_watermark
        marked = routing.marked(rows, late_watermark)
        partitions = self._jobs.partitions(marked)
        if partitions == operator.parallelism:
            return marked
        if partitions is None or partitions < operator.parallelism:
            return None
        if any(self._jobs.come_from(rows, uid) for uid in self._applied):
            return None  # put together, rows of that operator would move away from its subtasks
        return routing.marked(rows.coalesce(operator.parallelism), late_watermark)

    def _check_key_types(self, operator: Operator, key_types: tuple[str, ...]) -> None:
        """Refuse a key of other types than before: equal numbers of different types have different hashes."""
        known = self._pending.key_types.setdefault(operator.uid, key_types)
        if known != key_types:
            message = (
                f"the key {', '.join(operator.key)} of operator {operator.uid!r} is now of type "
                f"{', '.join(key_types)}, and was {', '.join(known)}: rows would not come to the "
                "subtasks that have their state. Cast the columns to what they were"
            )
            raise InvalidRequestError(message)

    def _broadcast_rows(self, operator: Operator, frame: DataFrame | None) -> pa.Table | None:
        """The rows that every subtask is to see; None if the operator takes no broadcast rows."""
        uid = operator.uid
        if frame is None and operator.broadcast is not None:
            frame = operator.broadcast(self._engine.session, self._pending.batch_id)
        elif operator.broadcast is not None:
            message = (
                f"operator {uid!r} has a broadcast function; apply(..., broadcast=) is one more"
            )
            raise InvalidRequestError(message)
        if isinstance(operator.function, BroadcastProcessFunction):
            what = f"broadcast rows of operator {uid!r}, a BroadcastProcessFunction,"
            return settled_table(readable(frame, what), uid=uid)
        if frame is not None:
            message = (
                f"operator {uid!r} takes no broadcast rows; derive it from BroadcastProcessFunction"
            )
            raise InvalidRequestError(message)
        return None

    def finish(self) -> dict[str, list[Acknowledgement]]:
        """The acknowledgements of all operators, by uid. Operators that the sink didn't run are run now.

        Raises:
            CheckpointDeclinedError: The state and the sink's output could come from different runs.
        """
        missing = sorted(self._operators.keys() - self._applied.keys() - self._kept.keys())
        if missing:
            message = (
                f"operators {missing} were not applied in this batch; apply each of them in every "
                "batch, if need be to no rows: batch.limit(0)"
            )
            raise CheckpointDeclinedError(message)
        if self._jobs is None:
            return {uid: acknowledgements_in(kept) for uid, kept in self._kept.items()}
        self._check_failed_jobs(self._jobs)
        # In a chain the last first: it runs those before it, too.
        acknowledgements = {}
        for uid, applied in reversed(list(self._applied.items())):
            others = [other for other in self._applied.values() if other is not applied]
            acknowledgements[uid] = applied.settled(others, self._jobs)
        return acknowledgements

    def _check_failed_jobs(self, jobs: Jobs) -> None:
        last = list(self._applied.values())[-1]
        if not jobs.are_all():
            raise last.declined(
                "changes the job group, by which failed jobs are found: use setJobDescription or "
                "addTag instead of setJobGroup"
            )
        failed = jobs.failed(self._jobs_before)
        all_persist = all(applied.operator.persist for applied in self._applied.values())
        # With persisted rows a sink may try again; what it did last counts.
        if any(failed[-1:] if all_persist else failed):
            raise last.declined(
                "or another part of the batch was told of a failed job, and went on"
            )


def _pickled(operator: Operator) -> bytes:
    """The operator's function as it is now.

    Raises:
        InvalidRequestError: Something in it can't be pickled.
    """
    try:
        pickled: bytes = cast("Any", cloudpickle).dumps(operator.function)
    except Exception as error:
        message = (
            f"the function of operator {operator.uid!r} can't be pickled to the executors ({error}); "
            "make what can't travel, such as locks and connections, in initialize_state"
        )
        raise InvalidRequestError(message) from error
    return pickled
