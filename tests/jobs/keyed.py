"""A keyed operator in batches without Spark: its driver, and a task that runs its subtasks."""

from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import pyarrow as pa
from jobs.coordinator import QUERY, begin_checkpoint, progress
from jobs.operators import Totals
from jobs.session import STATE_BACKEND
from msgspec import structs
from pyspark import cloudpickle

from holdfast import StatefulFunction
from holdfast.backends.functions import BatchTimes
from holdfast.backends.keys import key_hash
from holdfast.backends.subtask import OperatorKey
from holdfast.common import SYSTEM_CLOCK
from holdfast.locations import CompletedCheckpoint, FileSystemCheckpointStorage
from holdfast.locations.storages import JobDirectory
from holdfast.spark.operators import Operator
from holdfast.spark.query import (
    CLEANER,
    CheckpointCoordinator,
    Continuation,
    PendingCheckpoint,
    Retention,
    StoredJob,
)
from holdfast.spark.settings import Settings, StateSettings
from holdfast.spark.subtask import (
    Acknowledgement,
    CheckpointInfo,
    JobStorage,
    OperatorInfo,
    SubtaskRunner,
    TaskPayload,
    decode_acknowledgements,
)

UID = "operator"
DEFAULT_STATE = ContextVar("DEFAULT_STATE", default=StateSettings(backend=STATE_BACKEND))  # noqa: B039  # frozen
"""Settings of jobs that are given no others."""


class KeyedJob:
    """A query whose operator is keyed, from one start to the next.

    Args:
        directory: URI of the checkpoint directory.
        function: The operator's function.
        key: The key's columns.
        schema: Arrow schema of the input rows.
        output: Arrow schema of the output rows; None for that of the input.
        parallelism: Number of subtasks.
        start: The savepoint that it begins with.
        claims_start: Whether it claims the savepoint.
        job_id: Id of the job.
        query_id: Spark's id of the query.
        state: Settings of keyed and task-local state; None for the default.
        inline_threshold: State of at most this many bytes is stored inline.
    """

    def __init__(
        self,
        directory: str,
        function: StatefulFunction,
        *,
        schema: pa.Schema,
        key: Sequence[str] = ("key",),
        output: pa.Schema | None = None,
        parallelism: int = 2,
        start: str | None = None,
        claims_start: bool = False,
        job_id: str = "job",
        query_id: str = QUERY,
        state: StateSettings | None = None,
        inline_threshold: int = 0,
    ) -> None:
        storage = FileSystemCheckpointStorage(directory, inline_threshold=inline_threshold)
        self.function = function
        self._key = tuple(key)
        self._schema = schema
        self._output = output or schema
        self._parallelism = parallelism
        self._query_id = query_id
        self._operator = Operator(
            function=function, uid=UID, parallelism=parallelism, key=tuple(key)
        )
        settings = Settings.parse({"spark.holdfast.checkpoint.dir": "file:///nowhere"})
        self._job = JobStorage(
            job_id=job_id,
            storage=storage,
            stores=settings.stores,
            compression=None,
            state=state or DEFAULT_STATE.get(),
            clock=SYSTEM_CLOCK,
        )
        access = storage.create_checkpoint_storage(job_id)
        self._driver = CheckpointCoordinator(
            StoredJob(
                job_id=job_id,
                access=access,
                directory=JobDirectory.below(directory, job_id, single_writer=False),
                savepoint=start,
                claims_savepoint=claims_start,
            ),
            Continuation(query_id=query_id, operators={UID: self._operator}),
            Retention(num_retained=2, cleaner=CLEANER),
            clock=SYSTEM_CLOCK,
        )
        last = access.completed_checkpoints()
        self._batch_id = max(last, default=0)
        self.next_timers: list[tuple[int | None, int | None]] = []
        self.sources: set[str] = set()

    @property
    def latest(self) -> CompletedCheckpoint:
        """The newest checkpoint."""
        latest = self._driver.latest
        assert latest is not None
        return latest

    def run(
        self,
        rows: Iterable[Mapping[str, Any]] = (),
        *,
        times: tuple[int, int] = (0, 0),
        completes: bool = True,
    ) -> list[dict[str, Any]]:
        """Run a batch.

        Args:
            rows: The input rows.
            times: The time of the batch, and its watermark.
            completes: Whether its checkpoint is completed, or aborted.

        Returns:
            The output rows.
        """
        table = pa.Table.from_pylist(list(rows), self._schema).combine_chunks()
        pending = begin_checkpoint(self._driver, self._batch_id)
        assigned = pending.assigned[UID]
        key = OperatorKey(
            pa.schema([self._schema.field(name) for name in self._key]), assigned.max_parallelism
        )
        subtasks = self._subtasks(table, assigned.max_parallelism)
        reports = ReportList()
        output: list[dict[str, Any]] = []
        try:
            runner = SubtaskRunner(
                operator=OperatorInfo(
                    uid=UID,
                    parallelism=self._parallelism,
                    key=key,
                    input_schema=self._schema,
                    output_schema=self._output,
                ),
                checkpoint=CheckpointInfo(
                    checkpoint_id=pending.checkpoint_id,
                    location_reference=pending.location.location_reference,
                    restored_checkpoint_id=pending.restored_checkpoint_id,
                    may_refer=pending.may_refer[UID],
                    times=BatchTimes(*times, 0),
                ),
                job=self._job,
                payload=TaskPayload(
                    cloudpickle.dumps(self.function),  # type: ignore[no-untyped-call]
                    assigned.subtasks,
                    None,
                ),
                reports=reports,
            )
            batches: list[pa.RecordBatch] = []  # of a task that runs all subtasks
            for subtask in range(self._parallelism):
                marks = pa.array([subtask - self._parallelism], pa.int64())
                nulls = [pa.nulls(1, field.type) for field in self._schema]
                batches.append(pa.record_batch([*nulls, marks], [*self._schema.names, "subtask"]))
                own = table.filter(pa.array(subtasks == subtask))
                marked = own.append_column("subtask", pa.array([subtask] * len(own), pa.int64()))
                batches += marked.to_batches()
            for batch in runner(iter(batches)):
                output += batch.to_pylist()
            acknowledgements = decode_acknowledgements(reports.value)
            if completes:
                self._complete(pending, acknowledgements, times[0])
            else:
                self._driver.abort(pending)
        except BaseException:
            self._driver.abort(pending)
            raise
        return output

    def _complete(
        self, pending: PendingCheckpoint, acknowledgements: list[Acknowledgement], time_ms: int
    ) -> None:
        of_query = structs.replace(
            progress(pending.batch_id),
            query_id=self._query_id,
            offsets=f'v1\n{{"batchTimestampMs":{time_ms}}}',
        )
        self._driver.complete(pending, {UID: acknowledgements}, of_query)
        CLEANER.wait()
        self.next_timers = [report.next_timers for report in acknowledgements]
        self.sources = {
            report.state.statistics.restored_from
            for report in acknowledgements
            if report.state.statistics
        }
        self._batch_id += 1

    def _subtasks(self, table: pa.Table, max_parallelism: int) -> Any:
        """The subtask of each row."""
        if not len(table):
            return np.empty(0, np.int64)
        columns = [table[name].combine_chunks() for name in self._key]
        groups = key_hash(columns).to_numpy().astype(np.int64) % max_parallelism
        return groups * self._parallelism // max_parallelism


TOTALS_INPUT = pa.schema([("key", pa.int64()), ("id", pa.int64())])
TOTALS_OUTPUT = pa.schema([("key", pa.int64()), ("rows", pa.int64()), ("ids", pa.int64())])


def totals_job(directory: str, function: Totals | None = None, **options: Any) -> KeyedJob:
    """Return a job that counts rows and adds up ids by key."""
    schemas = {"schema": TOTALS_INPUT, "output": TOTALS_OUTPUT}
    return KeyedJob(directory, function or Totals(), **schemas, **options)


def totals_rows(keys: Iterable[int]) -> list[dict[str, int]]:
    """Return a row of each key, whose id is the key."""
    return [{"key": key, "id": key} for key in keys]


class ReportList:
    """Collects the reports of subtasks, as an accumulator of Spark does."""

    def __init__(self) -> None:
        self.value: list[bytes] = []

    def add(self, term: list[bytes]) -> None:
        self.value += term
