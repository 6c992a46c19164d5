"""`stateful`: an operator with state, as a function for `foreachBatch`."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StructField, StructType

from holdfast.backends import MAX_PARALLELISM, CheckpointListener
from holdfast.errors import (
    CheckpointDeclinedError,
    InvalidRequestError,
    OutcomeUnknownError,
)
from holdfast.locations import CheckpointStorage
from holdfast.spark import _query
from holdfast.spark._acknowledgements import COLUMN, Acknowledgement, decode_acknowledgements
from holdfast.spark._coordinator import CheckpointCoordinator, PendingCheckpoint, SparkProgress
from holdfast.spark._functions import StatefulFunction
from holdfast.spark._settings import Settings
from holdfast.spark._subtask import SubtaskRunner

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
        sink: Writes the output rows. It must read them in one action over all of them.
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
    if not uid:
        raise InvalidRequestError("operator needs a uid that is not empty")
    if not 1 <= parallelism <= MAX_PARALLELISM:
        message = f"parallelism is {parallelism}; it must be between 1 and {MAX_PARALLELISM}"
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

    Spark calls it once a micro-batch. It holds the run of the query that it was last called in.
    """

    def __init__(self, operator: _Operator) -> None:
        self._operator = operator
        self._run: _QueryRun | None = None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        session = _query.session_of(batch)
        query = _query.running_query(session, batch_id)
        if self._run is None or self._run.run_id != query.run_id:
            self.close()
            self._run = _QueryRun.start(self._operator, session, query)
        try:
            self._run.process(batch, batch_id, query)
        except BaseException:
            self.close()  # what storage holds now is for the next run to find out
            raise

    def close(self) -> None:
        """Wait until checkpoints that are not needed any more are deleted.

        A query that runs on, or a program that ends, does that by itself.
        """
        if self._run is not None:
            self._run.coordinator.close()
            self._run = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _QueryRun:
    """One run of a query, from its start until it stops or fails."""

    run_id: str
    operator: _Operator
    storage: CheckpointStorage
    job_id: str
    coordinator: CheckpointCoordinator
    finished: "Accumulator[int]"
    arrow_schemas: dict[str, pa.Schema] = field(default_factory=dict)

    @classmethod
    def start(
        cls, operator: _Operator, session: SparkSession, query: _query.RunningQuery
    ) -> "_QueryRun":
        settings = Settings.parse(session.conf.getAll)
        storage = settings.open_storage()
        job_id = settings.job_id or query.query_id
        coordinator = CheckpointCoordinator(
            storage.create_checkpoint_storage(job_id),
            job_id=job_id,
            query_id=query.query_id,
            uid=operator.uid,
            parallelism=operator.parallelism,
            num_retained=settings.num_retained,
        )
        _query.run_subtasks_without_rows(session)
        return cls(
            run_id=query.run_id,
            operator=operator,
            storage=storage,
            job_id=job_id,
            coordinator=coordinator,
            finished=session.sparkContext.accumulator(0),
        )

    def process(self, batch: DataFrame, batch_id: int, query: _query.RunningQuery) -> None:
        """Run one micro-batch through the operator and the sink, and commit it."""
        pending = self.coordinator.begin(batch_id)
        if pending is None:
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
            self.coordinator.abort(pending)
            self._notify("notify_checkpoint_aborted", pending.checkpoint_id)
            raise
        self._notify("notify_checkpoint_complete", pending.checkpoint_id)

    def _run_sink(self, batch: DataFrame, pending: PendingCheckpoint) -> list[Acknowledgement]:
        """Let the sink run the job; the acknowledgements come back through it."""
        operator = self.operator
        output = self._output(batch, pending)
        observation = Observation()
        observed = _observe(output, observation)
        before = self.finished.value
        if operator.persist:
            observed = observed.persist()
        try:
            if operator.persist:
                _run(observed)
            operator.sink(observed.where(F.col(COLUMN).isNull()).drop(COLUMN), pending.batch_id)
        finally:
            if operator.persist:
                observed.unpersist()
        finished = self.finished.value - before
        if finished < operator.parallelism:
            # The sink read nothing, or only a glimpse: the state may come from a pass of its own.
            observation = Observation()
            _run(_observe(output, observation))
        elif finished > operator.parallelism:
            message = (
                f"rows went through operator {operator.uid!r} more than once, and the sink may "
                "hold those of any pass: it has to read them in one action, or to be used with "
                "persist=True. If it does, an executor was lost; restart the query then"
            )
            raise CheckpointDeclinedError(message)
        if not _query.is_complete(_query.session_of(batch), observation):
            message = (
                f"the sink of operator {operator.uid!r} reads its rows in a way that can't be "
                "observed, such as DataFrame.rdd; use an action of the DataFrame, or persist=True"
            )
            raise CheckpointDeclinedError(message)
        return decode_acknowledgements(observation.get[_ACKNOWLEDGEMENTS])

    def _output(self, batch: DataFrame, pending: PendingCheckpoint) -> DataFrame:
        """The operator over the batch: its rows, and one acknowledgement from each subtask."""
        operator = self.operator
        rows = batch if operator.schema is None else _empty(batch, operator.schema)
        runner = SubtaskRunner(
            function=operator.function,
            uid=operator.uid,
            storage=self.storage,
            job_id=self.job_id,
            checkpoint_id=pending.checkpoint_id,
            location_reference=pending.location.location_reference,
            restored_checkpoint_id=pending.restored_checkpoint_id,
            assigned=pending.assigned,
            input_schema=self._arrow_schema(batch),
            output_schema=self._arrow_schema(rows),
            finished=self.finished,
        )
        # Acknowledgements come in rows of their own, in which all else is null.
        columns = [StructField(column.name, column.dataType) for column in rows.schema]
        schema = StructType([*columns, StructField(COLUMN, BinaryType())])
        dealt = F.pmod(F.monotonically_increasing_id(), F.lit(operator.parallelism))
        return batch.repartitionById(operator.parallelism, dealt.cast("int")).mapInArrow(
            runner, schema
        )

    def _arrow_schema(self, frame: DataFrame) -> pa.Schema:
        """How the frame's rows look in Arrow: nullable columns, timestamps in UTC."""
        key = frame.schema.json()
        if key not in self.arrow_schemas:
            self.arrow_schemas[key] = pa.schema(
                [
                    pa.field(column.name, _in_utc(column.type))
                    for column in frame.limit(0).toArrow().schema
                ]
            )
        return self.arrow_schemas[key]

    def _notify(self, method: str, checkpoint_id: int) -> None:
        """Tell the driver's copy of the operator, if it wants to know."""
        if isinstance(self.operator.function, CheckpointListener):
            getattr(self.operator.function, method)(checkpoint_id)


def _observe(output: DataFrame, observation: Observation) -> DataFrame:
    return output.observe(observation, F.collect_list(COLUMN).alias(_ACKNOWLEDGEMENTS))


def _run(frame: DataFrame) -> None:
    """Compute all rows and keep none."""
    frame.write.format("noop").mode("overwrite").save()


def _empty(like: DataFrame, schema: StructType | str) -> DataFrame:
    return like.sparkSession.createDataFrame([], schema)


def _in_utc(arrow_type: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(arrow_type) and arrow_type.tz is not None:
        return pa.timestamp(arrow_type.unit, "UTC")
    if pa.types.is_struct(arrow_type):
        return pa.struct([child.with_type(_in_utc(child.type)) for child in arrow_type])
    if pa.types.is_list(arrow_type):
        return pa.list_(arrow_type.value_field.with_type(_in_utc(arrow_type.value_type)))
    if pa.types.is_map(arrow_type):
        return pa.map_(_in_utc(arrow_type.key_type), _in_utc(arrow_type.item_type))
    return arrow_type
