"""The work of a subtask in a Spark task: restore, process, snapshot, acknowledge."""

import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Protocol

import msgspec
import pyarrow as pa
from pyspark import TaskContext, cloudpickle

from holdfast.backends.arrow import IncompatibleValueError, cast_rows
from holdfast.backends.functions import BatchTimes
from holdfast.backends.keys import KeyGroupRange, key_group_range
from holdfast.backends.subtask import OperatorKey
from holdfast.errors import (
    CheckpointDeclinedError,
    InvalidRequestError,
    StateMigrationError,
    UnreadableStateError,
)
from holdfast.locations.metadata import SubtaskStatistics
from holdfast.locations.storages import CheckpointStorageLocationReference
from holdfast.spark.operators import BroadcastProcessFunction, StatefulFunction
from holdfast.spark.subtask.acknowledgements import COLUMN, Acknowledgement
from holdfast.spark.subtask.input_rows import InputRows, marked_subtask
from holdfast.spark.subtask.shipment import JobStorage, Shipment
from holdfast.spark.warm_state import WarmState

if TYPE_CHECKING:  # a client of Spark Connect may have no more than pyspark-client
    from pyspark.core.broadcast import Broadcast


class Reports(Protocol):
    """Brings what tasks add to the driver, if they succeed: an accumulator of Spark's."""

    @property
    def value(self) -> list[bytes]:
        """All reports that have come to the driver."""
        ...

    def add(self, term: list[bytes]) -> None:
        """Add to it, in a task."""
        ...


def name_in_plans(uid: str) -> str:
    """The name of an operator in Spark's plans and user interface."""
    return f"holdfast:{uid}"


@cache
def spare_collections() -> None:
    """Leave what the first task of a process has loaded out of each later look for garbage.

    A worker of Spark's looks for garbage after each task, through all that was ever imported: some 70 ms
    of a processor, as much as a small batch costs otherwise. Later calls do nothing, for Python counts what
    was left out one by one: 11 ms of a processor, half of what a task of a small batch takes.
    """
    if not gc.get_freeze_count():
        gc.collect()  # what is garbage now would stay
        gc.freeze()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskRunner:
    """The function for `mapInArrow`: pickled to executors, and called once for each subtask.

    Rows come with a column behind those of `input_schema`, a mark: the number i of the subtask that they
    belong to. Each subtask also gets a row without data, marked by i - parallelism, so that it learns its number
    if it has no other rows. Rows that are late are marked by i - 2 * parallelism, and dropped. Spark's partition
    id can't tell the number: it changes when the sink coalesces.
    Rows that were not dealt come without such a row, since nobody could put it into each partition: there
    a partition without rows goes by Spark's id, and yields nothing. If that number is wrong, some subtask
    reports twice, and another doesn't report, so that the batch fails.

    Attributes:
        uid: The operator's name.
        job: Where the state of its job is kept.
        checkpoint_id: The checkpoint that is being taken.
        location_reference: Where files of that checkpoint go.
        restored_checkpoint_id: The checkpoint that the state comes from, or None.
        shipment: The function, states and broadcast rows, which can be large.
        parallelism: Number of the operator's subtasks.
        is_dealt: Whether each subtask gets a row without data.
        key: By what rows are dealt; None if they aren't dealt by key.
        may_refer: Whether the checkpoint may refer to shared files of the state that is restored.
        input_schema: Schema of the rows that come.
        output_schema: Schema of the rows that the operator yields.
        reports: Takes the acknowledgement of each subtask that comes to its end, over all jobs of
            the sink. If None, acknowledgements are rows of the output, in a column of their own.
        times: The times of the batch.
    """

    uid: str
    job: JobStorage
    checkpoint_id: int
    location_reference: CheckpointStorageLocationReference
    restored_checkpoint_id: int | None
    shipment: "Shipment | Broadcast[Shipment]"
    parallelism: int
    is_dealt: bool
    key: OperatorKey | None
    may_refer: bool
    input_schema: pa.Schema
    output_schema: pa.Schema
    reports: Reports | None
    times: BatchTimes = BatchTimes(0, 0, 0)  # noqa: RUF009  # frozen

    @property
    def __name__(self) -> str:
        """The name that Spark shows in plans."""
        return name_in_plans(self.uid)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is not None:
            rows = InputRows(chain([first], batches), self.input_schema, self.parallelism)
            yield from self._run(marked_subtask(first, self.parallelism), rows)
        elif not self.is_dealt:
            rows = InputRows(iter(()), self.input_schema, self.parallelism)
            for batch in self._run(self._partition(), rows):
                if batch.num_rows:
                    message = (
                        f"operator {self.uid!r} yields rows where its partition has none; with "
                        "forward=True nobody could tell whose they are. Let its rows be dealt"
                    )
                    raise CheckpointDeclinedError(message)
                yield batch

    def _partition(self) -> int:
        """Spark's partition id of the task: the subtask's number if the sink left the rows where they were."""
        task = TaskContext.get()
        partition = -1 if task is None else task.partitionId()
        if not 0 <= partition < self.parallelism:
            message = (
                f"operator {self.uid!r} has {self.parallelism} subtasks, and is computed in "
                f"partition {partition}: with forward=True the sink must not put other rows in "
                "front of its own"
            )
            raise CheckpointDeclinedError(message)
        return partition

    def _run(self, subtask: int, rows: InputRows) -> Iterator[pa.RecordBatch]:
        warm = WarmState(
            self.job.warm,
            job_id=self.job.job_id,
            uid=self.uid,
            subtask=subtask,
            checkpoint_id=self.checkpoint_id,
            clock=self.job.clock,
        )
        try:
            yield from self._run_over(subtask, rows, warm)
        except (InvalidRequestError, StateMigrationError, UnreadableStateError) as error:
            message, *rest = error.args
            if repr(self.uid) in message:
                raise
            named = type(error)(f"operator {self.uid!r}: {message}", *rest)
            raise named.with_traceback(error.__traceback__) from error.__cause__
        spare_collections()

    def _run_over(self, subtask: int, rows: InputRows, warm: WarmState) -> Iterator[pa.RecordBatch]:
        self.job.stores.use()
        factory = self.job.storage.create_checkpoint_storage(
            self.job.job_id
        ).resolve_checkpoint_storage_location(self.checkpoint_id, self.location_reference)

        clock = self.job.clock
        started = clock.monotonic_s()
        shipment = self.shipment if isinstance(self.shipment, Shipment) else self.shipment.value
        state, broadcast_rows = shipment.assigned[subtask], shipment.broadcast_rows
        function: StatefulFunction = cloudpickle.loads(shipment.function)
        handler = warm.restore(
            function,
            state,
            uid=self.uid,
            key=self.key,
            key_groups=self._key_groups(subtask),
            may_refer=self.may_refer,
            now_ms=self.times.batch_time,
        )
        try:
            restored = clock.monotonic_s()
            handler.initialize_state(
                warm.behind_copies(state),
                restored_checkpoint_id=self.restored_checkpoint_id,
                subtask_index=subtask,
                parallelism=self.parallelism,
                input_schema=self.input_schema,
                broadcast_schema=None if broadcast_rows is None else broadcast_rows.schema,
                output_schema=self.output_schema,
                times=self.times,
            )
            if isinstance(function, BroadcastProcessFunction):
                function.process_broadcast(broadcast_rows)
            rows_out = 0
            for batch in self._batches(function.process(rows)):
                rows_out += batch.num_rows
                yield self._output(batch)
            if not rows.exhausted:
                message = (
                    f"operator {self.uid!r} returned before it had read all of its rows; "
                    "the rest would be lost"
                )
                raise CheckpointDeclinedError(message)
            next_timers = handler.next_timers
            processed = clock.monotonic_s()
            snapshot = handler.snapshot_state(
                self.checkpoint_id, warm.beside_copies(factory), compression=self.job.compression
            )
            captured = clock.monotonic_s()
            result = snapshot.run()
        finally:
            # Before copies are counted: a database has them under a second name. And if it fails: a worker that ends
            # with an error would leave the database on the disk, which may be full.
            handler.close()
        warm.keep(result.state, result.task_local)
        written = clock.monotonic_s()

        statistics = SubtaskStatistics(
            rows_in=rows.count,
            rows_out=rows_out,
            state_bytes=result.state.written_bytes,
            restore_ms=1000 * (restored - started),
            process_ms=1000 * (processed - restored),
            sync_ms=1000 * (captured - processed),
            async_ms=1000 * (written - captured),
            restored_from=warm.source,
            rows_late=rows.late + function.late_rows,
            backend_metrics=warm.backend_metrics,
        )
        state = msgspec.structs.replace(result.state, statistics=statistics)
        task = TaskContext.get()
        attempt, stage = (task.taskAttemptId(), task.stageId()) if task else (-1, -1)
        report = Acknowledgement(
            subtask, attempt, state, self.checkpoint_id, stage, next_timers
        ).encode()
        if self.reports is None:
            yield self._row_of(report)
        else:
            self.reports.add([report])

    def _key_groups(self, subtask: int) -> KeyGroupRange | None:
        """The key groups of the subtask; None if rows aren't dealt by key."""
        if self.key is None:
            return None
        return key_group_range(self.key.max_parallelism, self.parallelism, subtask)

    def _batches(self, yielded: object) -> Iterator[pa.RecordBatch]:
        """The operator's output, with tables cut into batches."""
        if not isinstance(yielded, Iterable):
            message = (
                f"process of operator {self.uid!r} returned {type(yielded).__name__}; "
                "it has to yield record batches"
            )
            raise InvalidRequestError(message)
        for rows in yielded:
            if isinstance(rows, pa.RecordBatch):
                yield rows
            elif isinstance(rows, pa.Table):
                yield from rows.to_batches()
            else:
                message = (
                    f"operator {self.uid!r} yields {type(rows).__name__}; "
                    "it has to yield pyarrow.RecordBatch or pyarrow.Table"
                )
                raise InvalidRequestError(message)

    def _output(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch as it goes to the sink, maybe with an empty column of acknowledgements."""
        try:
            batch = cast_rows(batch, self.output_schema)
        except IncompatibleValueError as error:
            message = f"rows of operator {self.uid!r} don't fit its output schema: {error}"
            raise InvalidRequestError(message) from None
        if self.reports is not None:
            return batch
        return batch.append_column(COLUMN, pa.nulls(batch.num_rows, pa.binary()))

    def _row_of(self, report: bytes) -> pa.RecordBatch:
        """A batch of one row that has nothing but the acknowledgement."""
        columns = [pa.nulls(1, field.type) for field in self.output_schema]
        names = [*self.output_schema.names, COLUMN]
        return pa.RecordBatch.from_arrays([*columns, pa.array([report], pa.binary())], names=names)
