"""One micro-batch: applies operators, lets the sink run, and collects the acknowledgements."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, cast

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame

from holdfast.backends.functions import BatchTimes
from holdfast.backends.subtask import OperatorKey
from holdfast.errors import CheckpointDeclinedError, InvalidRequestError
from holdfast.spark.compat import read_arrow
from holdfast.spark.engines import Engine
from holdfast.spark.operators import (
    LATE,
    BroadcastProcessFunction,
    Operator,
    Routing,
    TaskHomes,
    main_output,
    read_table,
    side_output,
)
from holdfast.spark.query.checkpoints import PendingCheckpoint
from holdfast.spark.query.running_operator import PlanShape, RunningOperator
from holdfast.spark.subtask import (
    COLUMN,
    Acknowledgement,
    CheckpointInfo,
    JobStorage,
    OperatorInfo,
    SubtaskRunner,
    TaskPayload,
    decode_acknowledgements,
    has_duplicate_reports,
    reports_of_final_pass,
)

if TYPE_CHECKING:
    from holdfast.spark.engines import Jobs


def compute(frame: DataFrame) -> None:
    """Compute all rows, and keep none."""
    frame.write.format("noop").mode("overwrite").save()


@dataclass(slots=True)
class AppliedOperator:
    """An operator that was applied in the batch, whose output is computed when it is read.

    Attributes:
        received: All acknowledgements that have reached the driver, in this batch and before.
        ignored: Number of acknowledgements that are ignored.
    """

    operator: Operator
    parallelism: int
    rows: DataFrame
    output: DataFrame
    received: list[bytes]
    checkpoint_id: int
    ignored: int = field(init=False)

    def __post_init__(self) -> None:
        self.ignored = len(self.received)

    def acknowledgements(self) -> list[Acknowledgement]:
        """Return the reports of the subtasks in this batch."""
        reports = decode_acknowledgements(self.received[self.ignored :])
        return [report for report in reports if report.checkpoint_id == self.checkpoint_id]

    def decline_error(self, problem: str) -> CheckpointDeclinedError:
        """Return the error for a sink whose output may differ from the state."""
        message = (
            f"the sink of operator {self.operator.uid!r} {problem}. It has to read all rows in "
            "one action of the DataFrame and let errors through, or to be used with persist=True"
        )
        return CheckpointDeclinedError(message)

    def resolve_reports(
        self, others: Sequence["AppliedOperator"], jobs: "Jobs"
    ) -> list[Acknowledgement]:
        """Return the reports of the pass over the rows that the sink has written; if there was no such pass, run it.

        `others` are all other operators of the batch. Raises `CheckpointDeclinedError` if the state and the sink's
        output could be from different passes.
        """
        reports = self.acknowledgements()
        if self.operator.forward and has_duplicate_reports(reports):
            raise self.decline_error(
                "has some of its rows computed twice in one stage. With forward=True it must not "
                "coalesce them; if an executor was lost, restart the query"
            )
        if len(reports) < self.parallelism:
            # The sink read no rows, or only a prefix (show(), limit), so the state may be from another pass; unless
            # later operators have read the prefix, or earlier operators would run again.
            finished = [(other, len(other.acknowledgements())) for other in others]
            finished = [(other, count) for other, count in finished if count]
            uid = self.operator.uid
            is_partly_used = any(jobs.depends_on(other.rows, uid) for other, _ in finished)
            if not is_partly_used:
                self.ignored = len(self.received)  # earlier reports
                compute(self.output)
            if is_partly_used or any(
                len(other.acknowledgements()) != count for other, count in finished
            ):
                raise self.decline_error("reads its rows only in part")
            reports = self.acknowledgements()
        final = reports_of_final_pass(reports, self.parallelism)
        if final is None:
            raise self.decline_error(
                "runs its rows through the operator more than once, and may have written those of any "
                "pass (several actions, orderBy and repartitionByRange do that; so does the "
                "loss of an executor: restart the query then)"
            )
        return final


_current: ContextVar["BatchRun | None"] = ContextVar("holdfast_batch", default=None)


def current_batch() -> "BatchRun":
    """Return the batch that runs in this thread. Raises `InvalidRequestError` outside of a batch."""
    batch = _current.get()
    if batch is None:
        raise InvalidRequestError(
            "an operator is applied outside of a micro-batch; pass the function that applies it, "
            "and the operator, to stateful_query(...), and the result to foreachBatch"
        )
    return batch


def check_no_batch() -> None:
    """Refuse to start a batch inside of another batch. Raises `InvalidRequestError`."""
    if _current.get() is not None:
        raise InvalidRequestError(
            "an operator is called in the foreachBatch function of another operator or query; pass the "
            "operator also to stateful_query(...), and call its apply(...)"
        )


class BatchRun:
    """A micro-batch that is running. Use it in a single `with` block.

    Attributes:
        application_id: Returns the application id of the query for sinks.
        job: The storage of the query's state.
        job_directory: URI of the directory of the job's checkpoints; None if they are in memory.
        is_small: Whether the batch probably has so few rows that they are moved before Spark combines them.
        shares_tasks: Whether subtasks share tasks if there are more subtasks than Spark runs tasks at once.
        homes: The preferred executors of tasks; None if Spark may run them anywhere.
        targets: The tables that sinks have written in the batch.
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
        job_directory: str | None,
        is_small: bool,
        shares_tasks: bool,
        homes: TaskHomes | None,
    ) -> None:
        self.application_id = application_id
        self.job = job
        self.job_directory = job_directory
        self.is_small = is_small
        self.shares_tasks = shares_tasks
        self.homes = homes
        self.targets: set[str] = set()
        self._engine = engine
        self._jobs = engine.jobs(run_id)
        self._pending = pending
        self._operators = operators
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
        rows = _require_batch(rows, f"rows of operator {uid!r}")
        is_new = uid in self._pending.new
        shape = running.shape(rows, self._pending.assigned[uid], is_new=is_new)
        output = self._output(running, shape, rows, broadcast)
        if self._jobs is None:
            # If a block is lost from now on, reading it fails: rows are never computed again.
            self._kept[uid] = output.localCheckpoint(eager=True)
            return main_output(self._all_outputs(uid))
        assigned = self._pending.assigned[uid]
        applied = self._applied[uid] = AppliedOperator(
            operator,
            assigned.parallelism,
            rows,
            output,
            running.received,
            self._pending.checkpoint_id,
        )
        if operator.keeps_output:
            applied.output = output.persist()
            self._cleanup.callback(applied.output.unpersist)
            compute(applied.output)
        return main_output(applied.output) if operator.has_side_outputs else applied.output

    def side_output(self, operator: Operator, name: str) -> DataFrame:
        """Return the rows of a side output of an operator that was applied in the batch.

        Raises:
            InvalidRequestError: The operator has no such side output, or was not applied yet.
        """
        names = [*operator.side_outputs, *([LATE] if operator.late_rows else [])]
        if name not in names:
            raise InvalidRequestError(
                f"operator {operator.uid!r} has side outputs {names}, not {name!r}; declare it with side_outputs=, or "
                "late_rows=True for late rows"
            )
        if operator.uid not in self._applied and operator.uid not in self._kept:
            raise InvalidRequestError(
                f"side output {name!r} of operator {operator.uid!r} is read before the operator is applied in the batch; "
                "call apply(rows) first"
            )
        return side_output(self._all_outputs(operator.uid), name)

    def _all_outputs(self, uid: str) -> DataFrame:
        """Return all outputs of an operator, without acknowledgements."""
        if uid in self._kept:
            return self._kept[uid].where(f"{COLUMN} IS NULL").drop(COLUMN)
        return self._applied[uid].output

    def _is_same(self, known: Operator, given: Operator) -> bool:
        """Return whether both are the same operator; in the process of Spark Connect they are copies."""
        return known is given if self._jobs else known.is_like(given)

    def _output(
        self,
        running: RunningOperator,
        shape: PlanShape,
        rows: DataFrame,
        broadcast: DataFrame | None,
    ) -> DataFrame:
        """Return all outputs of the operator, with a column for acknowledgements if they are rows."""
        operator = running.operator
        assigned = self._pending.assigned[operator.uid]
        self._check_key_types(operator, shape.routing.key_types)
        forwarded = self._forward(shape.prepare(rows), shape.routing) if operator.forward else None
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
                side_schemas=shape.side_schemas,
                is_forwarded=forwarded is not None,
            ),
            checkpoint=CheckpointInfo(
                checkpoint_id=self._pending.checkpoint_id,
                location_reference=self._pending.location.location_reference,
                restored_checkpoint_id=self._pending.restored_checkpoint_id,
                may_refer=self._pending.may_refer[operator.uid],
                times=self._times,
            ),
            job=self.job,
            payload=self._cleanup.enter_context(self._engine.send(payload, uid=operator.uid)),
            reports=running.reports,
        )
        routed = forwarded
        if routed is None:
            tasks = self._task_count(assigned.parallelism)
            routed = shape.repartition(
                rows, self._times.late_watermark, tasks, self.homes, is_small=self.is_small
            )
        return shape.map(routed, runner)

    def _task_count(self, parallelism: int) -> int:
        """Return the number of tasks that run the subtasks."""
        if parallelism == 1 or not self.shares_tasks:
            return parallelism
        return min(parallelism, self._engine.default_parallelism())

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
                f"the key {', '.join(operator.key)} of operator {operator.uid!r} changed its type from "
                f"{', '.join(known)} to {', '.join(key_types)}, which changes its hash: rows would be routed "
                "to other subtasks than their state. Cast the columns to the earlier types",
                kind="key-changed",
            )

    def _broadcast_rows(self, operator: Operator, frame: DataFrame | None) -> pa.Table | None:
        """Return the rows for every subtask; None if the operator takes no broadcast rows."""
        uid = operator.uid
        if frame is None and operator.broadcast is not None:
            frame = operator.broadcast(self._engine.session, self._pending.batch_id)
        elif operator.broadcast is not None:
            raise InvalidRequestError(
                f"operator {uid!r} already has a broadcast function; remove broadcast= from apply(...)"
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

        Raises `CheckpointDeclinedError` if the state and the sink's output could be from different passes.
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

    def _check_failed_jobs(self, jobs: "Jobs") -> None:
        last = list(self._applied.values())[-1]
        if not jobs.includes_new_jobs():
            raise last.decline_error(
                "changes the job group, so that failed jobs are not detected: use setJobDescription or "
                "addTag instead of setJobGroup"
            )
        failed = jobs.failures(self._jobs_before)
        all_persist = all(applied.operator.keeps_output for applied in self._applied.values())
        # With persisted rows a sink may retry; its last job counts.
        if any(failed[-1:] if all_persist else failed):
            raise last.decline_error(
                "or another part of the batch has ignored the error of a failed job"
            )


def _require_batch(frame: object, name: str) -> DataFrame:
    """Return an argument that has to be a DataFrame without streams, or raise `InvalidRequestError`."""
    if not isinstance(frame, DataFrame):
        raise InvalidRequestError(f"{name} must be a DataFrame, not {type(frame).__name__}")
    if frame.isStreaming:
        message = (
            f"{name} are a streaming DataFrame, not a static one; derive them from the batch that is "
            "passed to the function"
        )
        raise InvalidRequestError(message)
    return frame


def _acknowledgements_in(output: DataFrame) -> list[Acknowledgement]:
    """Return the acknowledgements among the rows of an operator's output."""
    reports = read_arrow(output.where(f"{COLUMN} IS NOT NULL").select(COLUMN))
    return decode_acknowledgements(reports[COLUMN].to_pylist())


def _pickle_function(operator: Operator) -> bytes:
    """Pickle the operator's function in its present state. Raises `InvalidRequestError`."""
    try:
        pickled: bytes = cast("Any", cloudpickle).dumps(operator.function)
    except Exception as error:
        raise InvalidRequestError(
            f"the function of operator {operator.uid!r} can't be pickled to the executors ({error}); "
            "create such attributes, such as locks and connections, in initialize_state"
        ) from error
    return pickled
