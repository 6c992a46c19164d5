"""One micro-batch: applies operators, lets the sink run, and collects the acknowledgements."""

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
from holdfast.spark.operators import BroadcastProcessFunction, Operator, Routing, read_table
from holdfast.spark.query.checkpoints import PendingCheckpoint
from holdfast.spark.query.operator_run import AppliedOperator, RunningOperator, compute
from holdfast.spark.subtask import (
    COLUMN,
    Acknowledgement,
    CheckpointInfo,
    JobStorage,
    OperatorInfo,
    SubtaskRunner,
    TaskPayload,
    decode_acknowledgements,
)

_current: ContextVar["BatchRun | None"] = ContextVar("holdfast_batch", default=None)


def current_batch() -> "BatchRun":
    """Return the batch that runs in this thread.

    Raises:
        InvalidRequestError: No batch runs in this thread.
    """
    batch = _current.get()
    if batch is None:
        raise InvalidRequestError(
            "an operator is applied outside of a micro-batch; pass the function that applies it, "
            "and the operator, to stateful_query(...), and the result to foreachBatch"
        )
    return batch


def check_no_batch() -> None:
    """Refuse to start a batch inside of another batch.

    Raises:
        InvalidRequestError: A batch already runs in this thread.
    """
    if _current.get() is not None:
        raise InvalidRequestError(
            "an operator is called in the foreachBatch function of another operator or query; pass the "
            "operator also to stateful_query(...), and call its apply(...)"
        )


class BatchRun:
    """A micro-batch that is running. Use it in a single `with` block.

    Attributes:
        application_id: Returns the application id of the query for sinks.
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
        self._kept: dict[str, DataFrame] = {}  # outputs that are already computed
        self._cleanup = ExitStack()
        self._jobs_before: frozenset[int] = frozenset()

    def __enter__(self) -> Self:
        if self._jobs is not None:
            self._jobs_before = self._jobs.ids()
            for running in self._operators.values():
                self._cleanup.callback(running.received.clear)  # it can contain state
        self._cleanup.callback(_current.reset, _current.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.clear()  # Spark deletes the rows when there is no reference to them
        self._cleanup.close()

    def apply(self, operator: Operator, rows: DataFrame, broadcast: DataFrame | None) -> DataFrame:
        """Run rows through an operator: when the output is read if jobs can be monitored, otherwise immediately.

        Raises:
            InvalidRequestError: The query has no such operator, or has applied it before in the batch, or
                the rows are not suitable for the operator.
        """
        uid = operator.uid
        running = self._operators.get(uid)
        if running is None or not self._is_same(running.operator, operator):
            raise InvalidRequestError(
                f"operator {uid!r} is not part of this query, which has {sorted(self._operators)}; "
                "pass the same object also to stateful_query(...)"
            )
        if uid in self._applied or uid in self._kept:
            raise InvalidRequestError(
                f"operator {uid!r} is applied twice in a batch, but its state has one stream of rows. "
                "Unite the rows first, or make two operators with separate uids"
            )
        rows = running.prepare(_require_batch(rows, f"rows of operator {uid!r}"))
        if operator.begin is not None and uid in self._pending.new:
            rows = operator.begin(rows)
        output = self._output(running, rows, broadcast)
        if self._jobs is None:
            # If a block is lost from now on, reading it fails: rows are never computed again.
            kept = self._kept[uid] = output.localCheckpoint(eager=True)
            return kept.where(f"{COLUMN} IS NULL").drop(COLUMN)
        assigned = self._pending.assigned[uid]
        applied = self._applied[uid] = AppliedOperator(
            operator,
            assigned.parallelism,
            rows,
            output,
            running.received,
            self._pending.checkpoint_id,
        )
        if operator.persist:
            applied.output = output.persist()
            self._cleanup.callback(applied.output.unpersist)
            compute(applied.output)
        return applied.output

    def _is_same(self, known: Operator, given: Operator) -> bool:
        """Return whether both are the same operator; in the process of Spark Connect they are copies."""
        return known is given if self._jobs else known.is_like(given)

    def _output(
        self, running: RunningOperator, rows: DataFrame, broadcast: DataFrame | None
    ) -> DataFrame:
        """Return the operator's output, with a column for acknowledgements if they are rows."""
        operator = running.operator
        assigned = self._pending.assigned[operator.uid]
        shape = running.shape(rows, assigned)
        self._check_key_types(operator, shape.routing.key_types)
        forwarded = self._forward(rows, shape.routing) if operator.forward else None
        payload = TaskPayload(
            _pickle_function(operator), assigned.subtasks, self._broadcast_rows(operator, broadcast)
        )
        runner = SubtaskRunner(
            operator=OperatorInfo(
                uid=operator.uid,
                parallelism=assigned.parallelism,
                key=OperatorKey(shape.routing.key, assigned.max_parallelism)
                if operator.key
                else None,
                input_schema=shape.routing.input_schema,
                output_schema=shape.output_schema,
                is_forwarded=forwarded is not None,
            ),
            checkpoint=CheckpointInfo(
                checkpoint_id=self._pending.checkpoint_id,
                location_reference=self._pending.location.location_reference,
                restored_checkpoint_id=self._pending.restored_checkpoint_id,
                may_refer=self._pending.may_refer[operator.uid],
                times=self._times,
            ),
            job=self._job,
            payload=self._cleanup.enter_context(self._engine.send(payload, uid=operator.uid)),
            reports=running.reports,
        )
        schema = shape.spark_schema
        if running.reports is None:
            schema = StructType([*schema, StructField(COLUMN, BinaryType())])
        routed = forwarded
        if routed is None:
            routed = shape.routing.repartition(rows, self._times.late_watermark)
        return routed.mapInArrow(runner, schema)

    def _forward(self, rows: DataFrame, routing: Routing) -> DataFrame | None:
        """Return the rows in their partitions, one for each subtask; None if they have to be repartitioned."""
        if self._jobs is None:
            return None
        late_watermark = self._times.late_watermark
        marked = routing.mark(rows, late_watermark)
        partitions = self._jobs.partitions(marked)
        if partitions == routing.parallelism:
            return marked
        if partitions is None or partitions < routing.parallelism:
            return None
        if any(self._jobs.depends_on(rows, uid) for uid in self._applied):
            return None  # coalescing would move rows of that operator away from its subtasks
        return routing.mark(rows.coalesce(routing.parallelism), late_watermark)

    def _check_key_types(self, operator: Operator, key_types: tuple[str, ...]) -> None:
        """Refuse a key whose types have changed: equal numbers of different types have different hashes."""
        known = self._pending.key_types.setdefault(operator.uid, key_types)
        if known != key_types:
            raise InvalidRequestError(
                f"the key {', '.join(operator.key)} of operator {operator.uid!r} is now of type "
                f"{', '.join(key_types)}, and was {', '.join(known)}: rows would be routed to other "
                "subtasks than their state. Cast the columns to the earlier types"
            )

    def _broadcast_rows(self, operator: Operator, frame: DataFrame | None) -> pa.Table | None:
        """Return the rows for every subtask; None if the operator takes no broadcast rows."""
        uid = operator.uid
        if frame is None and operator.broadcast is not None:
            frame = operator.broadcast(self._engine.session, self._pending.batch_id)
        elif operator.broadcast is not None:
            raise InvalidRequestError(
                f"operator {uid!r} has a broadcast function; remove it, or apply(..., broadcast=)"
            )
        if isinstance(operator.function, BroadcastProcessFunction):
            name = f"broadcast rows of operator {uid!r}, a BroadcastProcessFunction,"
            return read_table(_require_batch(frame, name), uid=uid)
        if frame is not None:
            raise InvalidRequestError(
                f"operator {uid!r} takes no broadcast rows; derive it from BroadcastProcessFunction"
            )
        return None

    def finish(self) -> dict[str, list[Acknowledgement]]:
        """Return the acknowledgements of all operators, by uid. Operators that the sink didn't run are run now.

        Raises:
            CheckpointDeclinedError: The state and the sink's output could be from different passes.
        """
        missing = sorted(self._operators.keys() - self._applied.keys() - self._kept.keys())
        if missing:
            raise CheckpointDeclinedError(
                f"operators {missing} were not applied in this batch; apply each of them in every "
                "batch, if necessary to no rows: batch.limit(0)"
            )
        if self._jobs is None:
            return {uid: _acknowledgements_in(kept) for uid, kept in self._kept.items()}
        self._check_failed_jobs(self._jobs)
        # In a chain the last first, because it also runs those before it.
        acknowledgements = {}
        for uid, applied in reversed(list(self._applied.items())):
            others = [other for other in self._applied.values() if other is not applied]
            acknowledgements[uid] = applied.resolve_reports(others, self._jobs)
        return acknowledgements

    def _check_failed_jobs(self, jobs: Jobs) -> None:
        last = list(self._applied.values())[-1]
        if not jobs.includes_new_jobs():
            raise last.decline_error(
                "changes the job group, so that failed jobs are not detected: use setJobDescription or "
                "addTag instead of setJobGroup"
            )
        failed = jobs.failures(self._jobs_before)
        all_persist = all(applied.operator.persist for applied in self._applied.values())
        # With persisted rows a sink may retry; its last job counts.
        if any(failed[-1:] if all_persist else failed):
            raise last.decline_error(
                "or another part of the batch has ignored the error of a failed job"
            )


def _require_batch(frame: object, name: str) -> DataFrame:
    """Return an argument that has to be a DataFrame without streams.

    Raises:
        InvalidRequestError: It is a stream, or not a DataFrame.
    """
    if not isinstance(frame, DataFrame):
        raise InvalidRequestError(f"{name} must be a DataFrame, not {type(frame).__name__}")
    if frame.isStreaming:
        message = f"{name} are a stream; derive them from the rows that are passed to the function"
        raise InvalidRequestError(message)
    return frame


def _acknowledgements_in(output: DataFrame) -> list[Acknowledgement]:
    """Return the acknowledgements among the rows of an operator's output."""
    reports = output.where(f"{COLUMN} IS NOT NULL").select(COLUMN).toArrow()
    return decode_acknowledgements(reports[COLUMN].to_pylist())


def _pickle_function(operator: Operator) -> bytes:
    """Pickle the operator's function in its present state.

    Raises:
        InvalidRequestError: An attribute can't be pickled.
    """
    try:
        pickled: bytes = cast("Any", cloudpickle).dumps(operator.function)
    except Exception as error:
        raise InvalidRequestError(
            f"the function of operator {operator.uid!r} can't be pickled to the executors ({error}); "
            "create such attributes, such as locks and connections, in initialize_state"
        ) from error
    return pickled
