"""One micro-batch: its operators are applied, the sink runs, the acknowledgements are collected."""

from collections.abc import Mapping
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Self, cast

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, StructField, StructType

from holdfast.errors import CheckpointDeclinedError, InvalidRequestError
from holdfast.spark.engines import Engine, Jobs
from holdfast.spark.operators import (
    BroadcastProcessFunction,
    Operator,
    Routing,
    arrow_schema,
    settled_table,
)
from holdfast.spark.query.coordinator import PendingCheckpoint
from holdfast.spark.subtask import (
    COLUMN,
    Acknowledgement,
    JobStorage,
    Reports,
    Shipment,
    SubtaskRunner,
    decode_acknowledgements,
    is_doubled,
    of_the_pass,
)

_current: ContextVar["Batch | None"] = ContextVar("holdfast_batch", default=None)


def current_batch() -> "Batch":
    """The batch that this thread runs.

    Raises:
        InvalidRequestError: It runs none.
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
    """Refuse to begin a batch inside of another one.

    Raises:
        InvalidRequestError: This thread runs a batch already.
    """
    if _current.get() is not None:
        message = (
            "an operator is called by a function that runs in a batch with state itself; pass the "
            "operator to checkpointed(...) too, and call its apply(...)"
        )
        raise InvalidRequestError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What an operator's plan needs that depends on schemas alone.

    Attributes:
        routing: How rows get to subtasks.
        output_schema: The rows that the operator yields, in Arrow.
        spark_schema: The same for Spark.
    """

    routing: Routing
    output_schema: pa.Schema
    spark_schema: StructType

    @classmethod
    def of(cls, rows: DataFrame, operator: Operator, max_parallelism: int) -> Self:
        """The shape for rows like these."""
        output = rows
        if operator.schema is not None:
            output = rows.sparkSession.createDataFrame([], operator.schema)
        columns = [StructField(column.name, column.dataType) for column in output.schema]
        return cls(
            routing=Routing.of(rows, operator, max_parallelism),
            output_schema=arrow_schema(output, uid=operator.uid),
            spark_schema=StructType(columns),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningOperator:
    """What an operator has over all batches of a run.

    Attributes:
        operator: What the user says of it.
        reports: Brings the acknowledgements of subtasks, over all jobs of the sink; None if they
            are rows of the output.
        shapes: By the schema of what it is applied to.
    """

    operator: Operator
    reports: Reports | None
    shapes: dict[str, Shape] = field(default_factory=dict)

    @property
    def arrived(self) -> list[bytes]:
        """The acknowledgements that have come to the driver; the list itself."""
        return [] if self.reports is None else self.reports.value

    def shape(self, rows: DataFrame, max_parallelism: int) -> Shape:
        """What follows from the schema of the rows; worked out once for each."""
        key = rows.schema.json()
        if key not in self.shapes:
            self.shapes[key] = Shape.of(rows, self.operator, max_parallelism)
        return self.shapes[key]


@dataclass(slots=True)
class _Applied:
    """An operator that was applied in the batch, and whose output is computed when it is read.

    Attributes:
        operator: The operator.
        rows: What it is applied to.
        output: Its rows.
        arrived: All acknowledgements that have come to the driver, of the batch and before it.
        checkpoint_id: The checkpoint that the batch is to complete.
        before: How many of them don't count.
    """

    operator: Operator
    rows: DataFrame
    output: DataFrame
    arrived: list[bytes]
    checkpoint_id: int
    before: int = field(init=False)

    def __post_init__(self) -> None:
        self.before = len(self.arrived)

    @property
    def finished(self) -> int:
        """How many times subtasks came to their end in this batch."""
        return len(self.acknowledgements())

    def run(self) -> None:
        """Compute the output; what its subtasks reported before doesn't count any more."""
        self.before = len(self.arrived)
        run(self.output)

    def acknowledgements(self) -> list[Acknowledgement]:
        """What the subtasks reported in this batch."""
        reports = decode_acknowledgements(self.arrived[self.before :])
        return [one for one in reports if one.checkpoint_id == self.checkpoint_id]

    def declined(self, what: str) -> CheckpointDeclinedError:
        """The sink can't be trusted to hold what the state says."""
        message = (
            f"the sink of operator {self.operator.uid!r} {what}. It has to read all rows in "
            "one action of the DataFrame and let errors through, or to be used with persist=True"
        )
        return CheckpointDeclinedError(message)


class Batch:
    """A micro-batch that is being run. Use it in one `with` block.

    Args:
        engine: The query's way to Spark.
        run_id: Spark's id of the query's run.
        pending: The checkpoint that it is to complete.
        operators: The query's operators by uid.
        job: Where its state is kept.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        run_id: str,
        pending: PendingCheckpoint,
        operators: Mapping[str, RunningOperator],
        job: JobStorage,
    ) -> None:
        self._engine = engine
        self._jobs = engine.jobs(run_id)
        self._pending = pending
        self._operators = operators
        self._job = job
        self._applied: dict[str, _Applied] = {}
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
        """Run rows through an operator; if jobs can be watched, it happens when they are read.

        Raises:
            InvalidRequestError: The query has no such operator, or it was applied before, or rows
                don't suit it.
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
        rows = _readable(rows, f"rows of operator {uid!r}")
        output = self._output(running, rows, broadcast)
        if self._jobs is None:
            # A block that is lost now fails whatever reads it: never are rows computed anew.
            kept = self._kept[uid] = output.localCheckpoint(eager=True)
            return _rows_of(kept)
        applied = self._applied[uid] = _Applied(
            operator, rows, output, running.arrived, self._pending.checkpoint_id
        )
        if operator.persist:
            applied.output = output.persist()
            self._cleanup.callback(applied.output.unpersist)
            run(applied.output)
        return applied.output

    def _are_one(self, known: Operator, given: Operator) -> bool:
        """Whether it is the query's own operator; in the process of Spark Connect a copy of it."""
        return known is given if self._jobs else known.is_like(given)

    def _output(
        self, running: RunningOperator, rows: DataFrame, broadcast: DataFrame | None
    ) -> DataFrame:
        """The operator over the rows."""
        operator = running.operator
        assigned = self._pending.assigned[operator.uid]
        shape = running.shape(rows, assigned.max_parallelism)
        self._check_key_types(operator, shape.routing.key_types)
        forwarded = self._forwarded(operator, rows) if operator.forward else None
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
            max_parallelism=assigned.max_parallelism if operator.key else None,
            input_schema=shape.routing.input_schema,
            output_schema=shape.output_schema,
            reports=running.reports,
        )
        schema = shape.spark_schema
        if running.reports is None:
            schema = StructType([*schema, StructField(COLUMN, BinaryType())])
        routed = shape.routing.dealt(rows) if forwarded is None else forwarded
        return routed.mapInArrow(runner, schema)

    def _forwarded(self, operator: Operator, rows: DataFrame) -> DataFrame | None:
        """The rows where they are, one partition a subtask; None if they have to be dealt."""
        if self._jobs is None:
            return None
        marked = Routing.marked(rows)
        partitions = self._jobs.partitions(marked)
        if partitions == operator.parallelism:
            return marked
        if partitions is None or partitions < operator.parallelism:
            return None
        if any(self._jobs.come_from(rows, uid) for uid in self._applied):
            return None  # put together, theirs would no longer be where their subtasks are
        return Routing.marked(rows.coalesce(operator.parallelism))

    def _check_key_types(self, operator: Operator, key_types: tuple[str, ...]) -> None:
        """Equal numbers of different types have different hashes."""
        known = self._pending.key_types.setdefault(operator.uid, key_types)
        if known != key_types:
            message = (
                f"the key {', '.join(operator.key)} of operator {operator.uid!r} is now of type "
                f"{', '.join(key_types)}, and was {', '.join(known)}: rows would not come to the "
                "subtasks that have their state. Cast the columns to what they were"
            )
            raise InvalidRequestError(message)

    def _broadcast_rows(self, operator: Operator, frame: DataFrame | None) -> pa.Table | None:
        """What every subtask is to see, or None if the operator looks at no such rows."""
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
            return settled_table(_readable(frame, what), uid=uid)
        if frame is not None:
            message = (
                f"operator {uid!r} takes no broadcast rows; derive it from BroadcastProcessFunction"
            )
            raise InvalidRequestError(message)
        return None

    def finish(self) -> dict[str, list[Acknowledgement]]:
        """The acknowledgements of all operators, by uid; what the sink didn't run is run now.

        Raises:
            CheckpointDeclinedError: State and what the sink holds could come from different runs.
        """
        missing = sorted(self._operators.keys() - self._applied.keys() - self._kept.keys())
        if missing:
            message = (
                f"operators {missing} were not applied in this batch; apply each of them in every "
                "batch, if need be to no rows: batch.limit(0)"
            )
            raise CheckpointDeclinedError(message)
        if self._jobs is None:
            return {uid: _acknowledgements_in(kept) for uid, kept in self._kept.items()}
        self._check_failed_jobs(self._jobs)
        # Of a chain the last first: it runs those before it, too.
        return {
            uid: self._acknowledgements(applied, self._jobs)
            for uid, applied in reversed(list(self._applied.items()))
        }

    def _check_failed_jobs(self, jobs: Jobs) -> None:
        last = list(self._applied.values())[-1]
        if not jobs.are_all():
            raise last.declined(
                "changes the job group, by which failed jobs are found: use setJobDescription or "
                "addTag instead of setJobGroup"
            )
        failed = jobs.failed(self._jobs_before)
        all_persist = all(one.operator.persist for one in self._applied.values())
        # With persisted rows a sink may try again; what it did last counts.
        if any(failed[-1:] if all_persist else failed):
            raise last.declined(
                "or another part of the batch was told of a failed job, and went on"
            )

    def _acknowledgements(self, applied: _Applied, jobs: Jobs) -> list[Acknowledgement]:
        parallelism = applied.operator.parallelism
        reports = applied.acknowledgements()
        if applied.operator.forward and is_doubled(reports):
            raise applied.declined(
                "has some of its rows computed twice in one stage. With forward=True it must not "
                "coalesce them; if an executor was lost, restart the query"
            )
        if len(reports) < parallelism:
            # The sink read nothing, or only a glimpse: the state may come from another pass. Unless
            # operators behind this one have seen the glimpse, or those before it run once more.
            uid = applied.operator.uid
            others = [one for one in self._applied.values() if one is not applied and one.finished]
            ran = [one.finished for one in others]
            is_partly_used = any(jobs.come_from(one.rows, uid) for one in others)
            if not is_partly_used:
                applied.run()
            if is_partly_used or ran != [one.finished for one in others]:
                raise applied.declined("reads its rows only in part")
            reports = applied.acknowledgements()
        found = of_the_pass(reports, parallelism)
        if found is None:
            raise applied.declined(
                "runs its rows through the operator more than once, and may hold those of any "
                "pass (several actions, orderBy and repartitionByRange do that; so does the "
                "loss of an executor: restart the query then)"
            )
        return found


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


def _readable(frame: object, what: str) -> DataFrame:
    """The frame, if it has rows that can be read now."""
    if not isinstance(frame, DataFrame):
        message = f"{what} must be a DataFrame, not {type(frame).__name__}"
        raise InvalidRequestError(message)
    if frame.isStreaming:
        message = f"{what} are a stream; make them of the rows that the function was given"
        raise InvalidRequestError(message)
    return frame


def _rows_of(output: DataFrame) -> DataFrame:
    """An operator's own rows."""
    return output.where(f"{COLUMN} IS NULL").drop(COLUMN)


def _acknowledgements_in(output: DataFrame) -> list[Acknowledgement]:
    """The acknowledgements of the pass whose rows are kept."""
    found = output.where(f"{COLUMN} IS NOT NULL").select(COLUMN).toArrow()
    return decode_acknowledgements(found[COLUMN].to_pylist())


def run(frame: DataFrame) -> None:
    """Compute all rows and keep none."""
    frame.write.format("noop").mode("overwrite").save()
