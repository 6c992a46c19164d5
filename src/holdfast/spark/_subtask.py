"""What runs in a task: restore, process, snapshot, acknowledge."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import Accumulator

from holdfast.backends import (
    FunctionInitializationContext,
    FunctionSnapshotContext,
    OperatorStateBackend,
)
from holdfast.errors import CheckpointDeclinedError, InvalidRequestError
from holdfast.locations import (
    CheckpointStorage,
    CheckpointStorageLocationReference,
    OperatorStateHandle,
    SubtaskState,
    SubtaskStatistics,
)
from holdfast.spark._acknowledgements import COLUMN, Acknowledgement
from holdfast.spark._functions import StatefulFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskRunner:
    """The function for `mapInArrow`: pickled to executors, and called once in each task.

    Attributes:
        function: The user's operator.
        uid: Its name.
        storage: Where checkpoints go.
        job_id: The job.
        checkpoint_id: The checkpoint that is being taken.
        location_reference: Where its files go.
        restored_checkpoint_id: The checkpoint that the state comes from, or None.
        assigned: Handles to restore from, by subtask.
        input_schema: Schema of the rows that come.
        output_schema: Schema of the rows that the operator yields.
        finished: Counts the subtasks that came to their end, over all jobs of the sink.
    """

    function: StatefulFunction
    uid: str
    storage: CheckpointStorage
    job_id: str
    checkpoint_id: int
    location_reference: CheckpointStorageLocationReference
    restored_checkpoint_id: int | None
    assigned: tuple[tuple[OperatorStateHandle, ...], ...]
    input_schema: pa.Schema
    output_schema: pa.Schema
    finished: "Accumulator[int]"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        if task is None:
            raise InvalidRequestError("a subtask runs only in a task of Spark")
        subtask = task.partitionId()
        factory = self.storage.create_checkpoint_storage(
            self.job_id
        ).resolve_checkpoint_storage_location(self.checkpoint_id, self.location_reference)

        started = time.perf_counter()
        backend = OperatorStateBackend.restore(self.assigned[subtask])
        restored = time.perf_counter()
        self.function.initialize_state(
            FunctionInitializationContext(
                operator_state_store=backend,
                restored_checkpoint_id=self.restored_checkpoint_id,
                subtask_index=subtask,
                parallelism=len(self.assigned),
                input_schema=self.input_schema,
            )
        )
        rows = _Input(batches, self.input_schema)
        rows_out = 0
        for batch in self.function.process(rows):
            rows_out += batch.num_rows
            yield self._output(batch)
        if not rows.exhausted:
            message = (
                f"operator {self.uid!r} returned before it had read all of its rows; "
                "the rest would be lost"
            )
            raise CheckpointDeclinedError(message)
        processed = time.perf_counter()
        self.function.snapshot_state(FunctionSnapshotContext(self.checkpoint_id))
        snapshot = backend.snapshot(factory)
        captured = time.perf_counter()
        result = snapshot.run()
        written = time.perf_counter()

        handle = result.job_manager_owned
        statistics = SubtaskStatistics(
            rows_in=rows.count,
            rows_out=rows_out,
            state_bytes=result.state_bytes,
            restore_ms=1000 * (restored - started),
            process_ms=1000 * (processed - restored),
            sync_ms=1000 * (captured - processed),
            async_ms=1000 * (written - captured),
        )
        state = SubtaskState((handle,) if handle else (), statistics)
        yield self._acknowledge(Acknowledgement(subtask, task.taskAttemptId(), state))
        self.finished.add(1)

    def _output(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with an empty acknowledgement column."""
        if not batch.schema.equals(self.output_schema):
            try:
                batch = batch.cast(self.output_schema)
            except (pa.ArrowException, ValueError) as error:
                message = (
                    f"operator {self.uid!r} yields rows with columns {batch.schema.names} that "
                    f"don't fit its output schema with columns {self.output_schema.names} ({error})"
                )
                raise InvalidRequestError(message) from error
        return batch.append_column(COLUMN, pa.nulls(batch.num_rows, pa.binary()))

    def _acknowledge(self, acknowledgement: Acknowledgement) -> pa.RecordBatch:
        """A batch of one row that has nothing but the acknowledgement."""
        columns = [pa.nulls(1, field.type) for field in self.output_schema]
        report = pa.array([acknowledgement.encode()], pa.binary())
        names = [*self.output_schema.names, COLUMN]
        return pa.RecordBatch.from_arrays([*columns, report], names=names)


class _Input:
    """The rows of a subtask, counted and in the schema that the state knows.

    Spark names the session's time zone in timestamps; ours is always UTC, so that state stays
    readable when that setting changes.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
        self._batches = batches
        self._schema = schema
        self.count = 0
        self.exhausted = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            batch = next(self._batches)
        except StopIteration:
            self.exhausted = True
            raise
        self.count += batch.num_rows
        return batch if batch.schema.equals(self._schema) else batch.cast(self._schema)
