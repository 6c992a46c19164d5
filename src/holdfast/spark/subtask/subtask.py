"""A subtask in a Spark task: the data that the driver sends it, and its work: restore, process, snapshot, report."""

import resource
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
from pyspark import TaskContext, cloudpickle

from holdfast.backends.arrow import IncompatibleValueError, cast_rows
from holdfast.backends.functions import BatchTimes
from holdfast.backends.keyed import open_tables
from holdfast.backends.keys import KeyGroupRange, key_group_range
from holdfast.backends.snapshot import Compression
from holdfast.backends.subtask import ManagedKeyedState, OperatorKey, OperatorStateHandler
from holdfast.common import Clock
from holdfast.errors import (
    CheckpointDeclinedError,
    InvalidRequestError,
    StateMigrationError,
    UnreadableStateError,
)
from holdfast.locations.handles import ByteStreamStateHandle
from holdfast.locations.metadata import StoredSubtask, SubtaskStatistics
from holdfast.locations.storages import CheckpointStorage, CheckpointStorageLocationReference
from holdfast.spark.operators import (
    LATE,
    BroadcastProcessFunction,
    OutputSchema,
    SideRows,
    StatefulFunction,
)
from holdfast.spark.settings import StateSettings, Stores
from holdfast.spark.subtask.acknowledgements import COLUMN, Acknowledgement
from holdfast.spark.subtask.input_rows import InputRows, rows_by_subtask
from holdfast.spark.subtask.local_state import LocalState
from holdfast.spark.subtask.uploads import CapturedSubtask, Uploads, WrittenSubtask
from holdfast.spark.worker_task import worker_task

if TYPE_CHECKING:  # an installation for Spark Connect may have only pyspark-client
    from pyspark import Broadcast


class Reports(Protocol):
    """Sends reports of successful tasks, which `add` them, to the driver: an accumulator of Spark."""

    @property
    def value(self) -> list[bytes]: ...

    def add(self, term: list[bytes]) -> None: ...


def name_in_plans(uid: str) -> str:
    """Return the name of an operator in Spark's plans and user interface."""
    return f"holdfast:{uid}"


def _peak_memory_bytes() -> int:
    """Return the largest resident size that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStorage:
    """The storage of a job's state: its checkpoints, the stores that they are in, and the backends of keyed state."""

    job_id: str
    storage: CheckpointStorage
    stores: Stores
    compression: Compression | None
    state: StateSettings
    clock: Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorInfo:
    """The properties of an operator that its subtasks need.

    Attributes:
        key: Its key; None if rows are not partitioned by key.
        side_schemas: The schemas of its side outputs, by name.
        is_forwarded: Whether rows stay in Spark's partitions, so that a subtask may get no row at all.
    """

    uid: str
    parallelism: int
    key: OperatorKey | None
    input_schema: pa.Schema
    output_schema: pa.Schema
    side_schemas: Mapping[str, pa.Schema] = field(default_factory=dict)
    is_forwarded: bool = False

    @property
    def output(self) -> OutputSchema:
        return OutputSchema(self.output_schema, self.side_schemas)

    def key_groups(self, subtask: int) -> KeyGroupRange | None:
        if self.key is None:
            return None
        return key_group_range(self.key.max_parallelism, self.parallelism, subtask)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """The checkpoint that subtasks write.

    Attributes:
        location_reference: The location of its files.
        restored_checkpoint_id: The checkpoint from which state is restored, or None.
        may_refer: Whether the checkpoint may refer to shared files of the restored state.
        times: The times of the batch.
    """

    checkpoint_id: int
    location_reference: CheckpointStorageLocationReference
    restored_checkpoint_id: int | None = None
    may_refer: bool = True
    times: BatchTimes = BatchTimes(0, 0, 0)  # noqa: RUF009  # frozen


@dataclass(frozen=True, slots=True)
class TaskPayload:
    """The part of the data that can be large.

    Attributes:
        function: The user's function, pickled. Each subtask unpickles its own copy.
        assigned: The state from which each subtask is restored.
        broadcast_rows: Rows for every subtask; None if the operator takes no such rows.
    """

    function: bytes
    assigned: tuple[StoredSubtask, ...]
    broadcast_rows: pa.Table | None

    @property
    def size(self) -> int:
        inline = sum(
            stream.size
            for state in self.assigned
            for stream in state.streams()
            if isinstance(stream, ByteStreamStateHandle)
        )
        rows = self.broadcast_rows.nbytes if self.broadcast_rows is not None else 0
        return len(self.function) + inline + rows


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskRunner:
    """The function for `mapInArrow`: pickled to executors, and called once for each task, which runs one or more subtasks.

    The last column of the rows is a mark, which `Routing` adds: the number i of their subtask. Each subtask also gets
    a row without data and with the mark i - parallelism, which carries its number if there are no other rows. Late rows
    have the mark i - 2 * parallelism, and are dropped. Spark's partition id is not the number: it changes if the
    sink coalesces. The rows of a subtask follow each other, and subtasks of a task run one after the other.

    Forwarded rows have no such additional row, because there is no way to add one to each partition. A partition
    without rows takes Spark's id as its number, and must not yield rows. If that number is wrong, some subtask reports
    twice, and another one doesn't, so that the batch fails.

    Attributes:
        reports: Receives the acknowledgement of each subtask that ends, over all jobs of the sink. If None,
            acknowledgements are rows of the output, in a separate column.
    """

    operator: OperatorInfo
    checkpoint: CheckpointInfo
    job: JobStorage
    payload: "TaskPayload | Broadcast[TaskPayload]"
    reports: Reports | None

    @property
    def __name__(self) -> str:
        return name_in_plans(self.operator.uid)

    @worker_task
    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            with Uploads() as uploads:
                yield from self._run_subtasks(batches, uploads)
        except (InvalidRequestError, StateMigrationError, UnreadableStateError) as error:
            uid = self.operator.uid
            message, *rest = error.args
            if repr(uid) in message:
                raise
            named = type(error)(f"operator {uid!r}: {message}", *rest)
            raise named.with_traceback(error.__traceback__) from error.__cause__

    def _run_subtasks(
        self, batches: Iterable[pa.RecordBatch], uploads: Uploads
    ) -> Iterator[pa.RecordBatch]:
        schema, parallelism = self.operator.input_schema, self.operator.parallelism
        ended: set[int] = set()
        for subtask, rows_of_subtask in rows_by_subtask(batches, parallelism):
            if subtask in ended:
                raise CheckpointDeclinedError(
                    f"rows of subtask {subtask} of operator {self.operator.uid!r} arrive after the subtask has ended"
                )
            for written in uploads.start():
                yield from self._report(written)
            yield from self._process(
                subtask, InputRows(rows_of_subtask, schema, parallelism), uploads
            )
            ended.add(subtask)
        if not ended and self.operator.is_forwarded:
            rows = InputRows(iter(()), schema, parallelism)
            for batch in self._process(self._partition(), rows, uploads):
                if batch.num_rows:
                    raise CheckpointDeclinedError(
                        f"operator {self.operator.uid!r} yields rows although its partition has none, which "
                        "forward=True does not allow: the subtask of the rows is unknown. Remove forward=True"
                    )
                yield batch
        for written in uploads.finish():
            yield from self._report(written)

    def _partition(self) -> int:
        """Return Spark's partition id: the subtask's number if the sink did not move the rows."""
        task = TaskContext.get()
        partition = -1 if task is None else task.partitionId()
        if not 0 <= partition < self.operator.parallelism:
            raise CheckpointDeclinedError(
                f"operator {self.operator.uid!r} has {self.operator.parallelism} subtasks, and is computed "
                f"in partition {partition}: with forward=True the sink must not put other rows before "
                "its rows"
            )
        return partition

    def _process(self, subtask: int, rows: InputRows, uploads: Uploads) -> Iterator[pa.RecordBatch]:
        """Restore a subtask, process its rows, and capture its state for the upload."""
        checkpoint, clock = self.checkpoint, self.job.clock
        self.job.stores.use()
        local = LocalState(
            self.job.state,
            job_id=self.job.job_id,
            uid=self.operator.uid,
            subtask=subtask,
            checkpoint_id=checkpoint.checkpoint_id,
            clock=clock,
        )
        location = self.job.storage.create_checkpoint_storage(
            self.job.job_id
        ).resolve_checkpoint_storage_location(
            checkpoint.checkpoint_id, checkpoint.location_reference
        )

        start_ms, start_s = clock.now_ms(), clock.monotonic_s()
        payload = self.payload if isinstance(self.payload, TaskPayload) else self.payload.value
        broadcast_rows = payload.broadcast_rows
        function: StatefulFunction = cloudpickle.loads(payload.function)
        state, written = local.restore(payload.assigned[subtask])
        backend_metrics: dict[str, int] = {}
        handler = OperatorStateHandler.restore(
            function,
            state,
            uid=self.operator.uid,
            key_groups=self.operator.key_groups(subtask),
            keyed_state=self._keyed_state(subtask, state, local, backend_metrics.update),
            written=written,
        )
        with ExitStack() as on_error:
            # A worker that ends with an error would leave a database on the disk, which may be full.
            on_error.callback(handler.close)
            restored_s = clock.monotonic_s()
            side = {name: SideRows(schema) for name, schema in self.operator.side_schemas.items()}
            if not function.keeps_late_rows:
                rows.late_output = side.get(LATE)
            handler.initialize_state(
                state,
                restored_checkpoint_id=checkpoint.restored_checkpoint_id,
                subtask_index=subtask,
                parallelism=self.operator.parallelism,
                input_schema=self.operator.input_schema,
                broadcast_schema=None if broadcast_rows is None else broadcast_rows.schema,
                output_schema=self.operator.output_schema,
                times=checkpoint.times,
                side_outputs=side,
            )
            if isinstance(function, BroadcastProcessFunction):
                function.process_broadcast(broadcast_rows)
            rows_out = 0
            for batch in self._outputs(function.process(iter(rows)), side):
                rows_out += batch.num_rows
                yield batch
            if not rows.is_exhausted:
                raise CheckpointDeclinedError(
                    f"operator {self.operator.uid!r} returned before it had read all of its rows; "
                    "the rest would be lost"
                )
            next_timers = handler.next_timers
            processed_s = clock.monotonic_s()
            snapshot = handler.snapshot_state(
                checkpoint.checkpoint_id,
                local.duplicate(location),
                compression=self.job.compression,
            )
            captured_s = clock.monotonic_s()
            on_error.pop_all()
        statistics = SubtaskStatistics(
            rows_in=rows.count,
            rows_out=rows_out,
            state_bytes=0,
            restore_ms=1000 * (restored_s - start_s),
            process_ms=1000 * (processed_s - restored_s),
            sync_ms=1000 * (captured_s - processed_s),
            async_ms=0,
            rows_late=rows.late + function.late_rows,
            backend_metrics=backend_metrics,
        )
        uploads.add(
            CapturedSubtask(
                subtask=subtask,
                snapshot=snapshot,
                handler=handler,
                local=local,
                clock=clock,
                statistics=statistics,
                next_timers=next_timers,
                start_ms=start_ms,
                captured_s=captured_s,
            )
        )

    def _keyed_state(
        self,
        subtask: int,
        state: StoredSubtask,
        local: LocalState,
        on_metrics: Callable[[Mapping[str, int]], None],
    ) -> ManagedKeyedState | None:
        """Return the keyed state, which opens its backend when it is first used; None without a key."""
        key, key_groups = self.operator.key, self.operator.key_groups(subtask)
        if key is None or key_groups is None:
            return None
        return ManagedKeyedState(
            key,
            key_groups,
            state.managed_keyed,
            now_ms=self.checkpoint.times.batch_time,
            open_tables=partial(
                open_tables,
                backend=self.job.state.backend_of(self.operator.uid),
                rocksdb=self.job.state.rocksdb,
                on_metrics=on_metrics,
                directory=local.segment_directory,
                workspace=local.workspace,
                may_refer=self.checkpoint.may_refer,
            ),
        )

    def _report(self, written: WrittenSubtask) -> Iterator[pa.RecordBatch]:
        """Report a subtask to the driver; as a row of the output if there are no `reports`."""
        task = TaskContext.get()
        attempt, stage = (task.taskAttemptId(), task.stageId()) if task else (-1, -1)
        subtask = written.captured
        report = Acknowledgement(
            subtask.subtask,
            attempt,
            written.state,
            self.checkpoint.checkpoint_id,
            stage,
            subtask.next_timers,
            subtask.start_ms,
            _peak_memory_bytes(),
            written.calls.calls,
            written.calls.retries,
        ).encode()
        if self.reports is not None:
            self.reports.add([report])
            return
        fields = self.operator.output.fields
        columns = [pa.nulls(1, field.type) for field in fields]
        names = [*(field.name for field in fields), COLUMN]
        yield pa.RecordBatch.from_arrays([*columns, pa.array([report], pa.binary())], names=names)

    def _outputs(self, main: object, side: Mapping[str, SideRows]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all outputs, with an empty column of acknowledgements if they are rows."""
        output = self.operator.output
        for batch in self._batches(main):
            yield self._with_acknowledgements(output.of_main(self._conform(batch)))
            for name, rows in side.items():
                if rows.is_full:
                    yield from self._side_batches(name, rows)
        for name, rows in side.items():
            yield from self._side_batches(name, rows)

    def _side_batches(self, name: str, rows: SideRows) -> Iterator[pa.RecordBatch]:
        for batch in rows.take():
            yield self._with_acknowledgements(self.operator.output.of_side(name, batch))

    def _batches(self, output: object) -> Iterator[pa.RecordBatch]:
        """Yield the operator's output, with tables split into batches."""
        uid = self.operator.uid
        if not isinstance(output, Iterable):
            raise InvalidRequestError(
                f"process of operator {uid!r} returned {type(output).__name__}; "
                "it must yield record batches"
            )
        for rows in output:
            if isinstance(rows, pa.RecordBatch):
                yield rows
            elif isinstance(rows, pa.Table):
                yield from rows.to_batches()
            else:
                raise InvalidRequestError(
                    f"operator {uid!r} yields {type(rows).__name__}; "
                    "it must yield pyarrow.RecordBatch or pyarrow.Table"
                )

    def _conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the main output in its schema."""
        try:
            return cast_rows(batch, self.operator.output_schema)
        except IncompatibleValueError as error:
            message = f"rows of operator {self.operator.uid!r} don't fit its output schema: {error}"
            raise InvalidRequestError(message) from None

    def _with_acknowledgements(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.reports is not None:
            return batch
        return batch.append_column(COLUMN, pa.nulls(batch.num_rows, pa.binary()))
