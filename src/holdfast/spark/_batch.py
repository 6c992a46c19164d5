"""One micro-batch: its operators are applied, the sink runs, the acknowledgements are collected."""

from collections.abc import Mapping
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Self

import pyarrow as pa
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StructField, StructType

from holdfast.errors import CheckpointDeclinedError, InvalidRequestError
from holdfast.spark._acknowledgements import COLUMN, Acknowledgement, decode_acknowledgements
from holdfast.spark._coordinator import PendingCheckpoint
from holdfast.spark._engine import Engine, Jobs
from holdfast.spark._functions import BroadcastProcessFunction
from holdfast.spark._operator import Operator
from holdfast.spark._routing import Routing, arrow_schema, settled_table
from holdfast.spark._subtask import Counter, JobStorage, Shipment, SubtaskRunner

_ACKNOWLEDGEMENTS = "acknowledgements"

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
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
    def of(cls, rows: DataFrame, operator: Operator, max_parallelism: int) -> Self:
        """The shape for rows like these."""
        output = rows
        if operator.schema is not None:
            output = rows.sparkSession.createDataFrame([], operator.schema)
        # Acknowledgements come in rows of their own, in which all else is null.
        columns = [StructField(column.name, column.dataType) for column in output.schema]
        return cls(
            routing=Routing.of(rows, operator, max_parallelism),
            output_schema=arrow_schema(output, uid=operator.uid),
            with_acknowledgements=StructType([*columns, StructField(COLUMN, BinaryType())]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningOperator:
    """What an operator has over all batches of a run.

    Attributes:
        operator: What the user says of it.
        finished: Counts the subtasks that came to their end, over all jobs of the sink.
        shapes: By the schema of what it is applied to.
    """

    operator: Operator
    finished: Counter
    shapes: dict[str, Shape] = field(default_factory=dict)

    def shape(self, rows: DataFrame, max_parallelism: int) -> Shape:
        """What follows from the schema of the rows; worked out once for each."""
        key = rows.schema.json()
        if key not in self.shapes:
            self.shapes[key] = Shape.of(rows, self.operator, max_parallelism)
        return self.shapes[key]


@dataclass(slots=True)
class _Applied:
    """An operator that was applied in the batch.

    Attributes:
        running: The operator.
        output: Its rows, and one acknowledgement from each subtask.
        finished_before: What `running.finished` was before.
        observation: Sees the acknowledgements of the first job that runs over `observed`.
        observed: The output, being observed.
    """

    running: RunningOperator
    output: DataFrame
    finished_before: int
    observation: Observation = field(init=False)
    observed: DataFrame = field(init=False)

    def __post_init__(self) -> None:
        self.observe()

    def observe(self) -> None:
        """Observe the output anew."""
        self.observation = Observation()
        collected = F.expr(f"collect_list({COLUMN}) as {_ACKNOWLEDGEMENTS}")
        self.observed = self.output.observe(self.observation, collected)

    @property
    def finished(self) -> int:
        """How many times subtasks came to their end in this batch."""
        return self.running.finished.value - self.finished_before

    def declined(self, what: str) -> CheckpointDeclinedError:
        """The sink can't be trusted to hold what the state says."""
        message = (
            f"the sink of operator {self.running.operator.uid!r} {what}. It has to read all rows in "
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
        token = _current.set(self)
        self._cleanup.callback(_current.reset, token)
        if self._jobs is not None:
            self._jobs_before = self._jobs.ids()
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.clear()  # Spark lets go of the rows when nobody refers to them
        self._cleanup.close()

    def apply(self, uid: str, rows: DataFrame, broadcast: DataFrame | None) -> DataFrame:
        """Run rows through an operator; if jobs can be watched, it happens when they are read.

        Raises:
            InvalidRequestError: The query has no such operator, or it was applied before, or rows
                don't suit it.
        """
        running = self._operators.get(uid)
        if running is None:
            message = (
                f"operator {uid!r} is none of this query's, which are {sorted(self._operators)}; "
                "pass it to checkpointed(...) too"
            )
            raise InvalidRequestError(message)
        if uid in self._applied or uid in self._kept:
            message = (
                f"operator {uid!r} is applied twice in a batch; its state has one stream of rows. "
                "Unite the rows first, or make two operators with uids of their own"
            )
            raise InvalidRequestError(message)
        output = self._output(running, rows, broadcast)
        if self._jobs is None:
            # A block that is lost now fails whatever reads it: never are rows computed anew.
            kept = self._kept[uid] = output.localCheckpoint(eager=True)
            return _rows_of(kept)
        applied = self._applied[uid] = _Applied(running, output, running.finished.value)
        if running.operator.persist:
            applied.observed = applied.observed.persist()
            self._cleanup.callback(applied.observed.unpersist)
            run(applied.observed)
            # A job of the sink that fails is a matter of its own.
            self._jobs_before = self._jobs.ids()
        return _rows_of(applied.observed)

    def _output(
        self, running: RunningOperator, rows: DataFrame, broadcast: DataFrame | None
    ) -> DataFrame:
        """The operator over the rows: its own rows, and one acknowledgement from each subtask."""
        operator = running.operator
        assigned = self._pending.assigned[operator.uid]
        shape = running.shape(rows, assigned.max_parallelism)
        shipment = Shipment(assigned.subtasks, self._broadcast_rows(operator, broadcast))
        runner = SubtaskRunner(
            function=operator.function,
            uid=operator.uid,
            job=self._job,
            checkpoint_id=self._pending.checkpoint_id,
            location_reference=self._pending.location.location_reference,
            restored_checkpoint_id=self._pending.restored_checkpoint_id,
            shipment=self._cleanup.enter_context(self._engine.shipped(shipment, uid=operator.uid)),
            parallelism=operator.parallelism,
            max_parallelism=assigned.max_parallelism if operator.key else None,
            input_schema=shape.routing.input_schema,
            output_schema=shape.output_schema,
            finished=running.finished,
        )
        return shape.routing.dealt(rows).mapInArrow(runner, shape.with_acknowledgements)

    def _broadcast_rows(self, operator: Operator, frame: DataFrame | None) -> pa.Table | None:
        """What every subtask is to see, or None if the operator looks at no such rows."""
        takes_them = isinstance(operator.function, BroadcastProcessFunction)
        if frame is None and operator.broadcast is not None:
            frame = operator.broadcast(self._engine.session, self._pending.batch_id)
        if takes_them != isinstance(frame, DataFrame):
            message = (
                f"operator {operator.uid!r} is a BroadcastProcessFunction; it needs a DataFrame "
                f"for every subtask, by broadcast=, not {type(frame).__name__}"
                if takes_them
                else f"operator {operator.uid!r} takes no broadcast rows; derive it from "
                "BroadcastProcessFunction"
            )
            raise InvalidRequestError(message)
        return None if frame is None else settled_table(frame, uid=operator.uid)

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
        failed = jobs.failed(self._jobs_before)
        all_persist = all(one.running.operator.persist for one in self._applied.values())
        # With persisted rows a sink may try again; what it did last counts.
        if any(failed[-1:] if all_persist else failed):
            last = list(self._applied.values())[-1]
            raise last.declined("was told of a failed job, and went on")

    def _acknowledgements(self, applied: _Applied, jobs: Jobs) -> list[Acknowledgement]:
        parallelism = applied.running.operator.parallelism
        if applied.finished < parallelism and (not applied.finished or len(self._applied) == 1):
            # The sink read nothing, or only a glimpse: the state may come from another pass.
            if jobs.is_complete(applied.observation):
                applied.observe()
            run(applied.observed)
        elif applied.finished < parallelism:
            raise applied.declined("reads its rows only in part")
        elif applied.finished > parallelism:
            raise applied.declined(
                "runs its rows through the operator more than once, and may hold those of any "
                "pass (several actions, orderBy and repartitionByRange do that; so does the "
                "loss of an executor: restart the query then)"
            )
        if not jobs.is_complete(applied.observation):
            raise applied.declined(
                "reads its rows in a way that can't be observed, such as rdd or foreach"
            )
        return decode_acknowledgements(applied.observation.get[_ACKNOWLEDGEMENTS])


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
