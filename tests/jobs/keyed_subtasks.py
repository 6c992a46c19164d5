"""An operator with keyed state in several subtasks, without Spark: batches, checkpoints, replays and rescaling."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from contracts.keyed.checkpoints import KeyedCheckpoints, parts_of
from contracts.progress import progress_after_batch
from jobs.keyed import DEFAULT_STATE
from jobs.quick_disk import QUICK_DISK

from holdfast import StatefulFunction
from holdfast.backends import KeyedStateBackend
from holdfast.backends.functions import BatchTimes, FunctionInitializationContext
from holdfast.backends.keyed import BackendName, open_tables
from holdfast.backends.keys import key_group_range, key_hash
from holdfast.backends.operator import OperatorStateBackend
from holdfast.locations import (
    CheckpointMetadata,
    StoredOperator,
    StoredSubtask,
    complete_checkpoint,
)

GROUPS = 8


@dataclass
class KeyedSubtasks:
    """The subtasks of an operator.

    Attributes:
        make: Makes the operator; each subtask of each batch has a new one.
        key: The key's columns.
        parallelism: Number of subtasks of the next batch.
        backend: The backend of keyed state.
        output: Schema of the output rows; None for that of the input.
        late_rows: Number of late rows in the last batch.
        next_timer: The earliest pending timer of event time, milliseconds.
        watermark: The watermark of the last batch.
    """

    make: Callable[[], StatefulFunction]
    key: pa.Schema
    parallelism: int = 1
    backend: BackendName = field(default_factory=lambda: DEFAULT_STATE.get().backend)
    output: pa.Schema | None = None
    late_rows: int = 0
    next_timer: int | None = None
    watermark: int = 0
    checkpoints: KeyedCheckpoints = field(default_factory=KeyedCheckpoints)
    _handles: tuple[Any, ...] = ()
    _checkpoint_id: int = 0

    def batch(
        self, rows: pa.Table, *, watermark: int = 0, batch_time: int = 0, replays: int = 0
    ) -> list[dict[str, Any]]:
        """Run a batch, complete its checkpoint, and return the output rows.

        Args:
            rows: The rows.
            watermark: The watermark of the batch.
            batch_time: The time of the batch.
            replays: Number of runs of the batch that don't complete, before the one that does.
        """
        out = self.run(rows, watermark=watermark, batch_time=batch_time, replays=replays)
        return [row for batch in out for row in batch.to_pylist()]

    def run(
        self, rows: pa.Table, *, watermark: int = 0, batch_time: int = 0, replays: int = 0
    ) -> list[pa.RecordBatch]:
        """Do what `batch` does, and return the output as batches of Arrow."""
        for _ in range(replays):
            self._run(rows, watermark, batch_time)
        out, self._handles = self._run(rows, watermark, batch_time)
        self.watermark = watermark
        return out

    def complete(self, uid: str) -> str:
        """Complete a checkpoint of the operator, and return its pointer."""
        self._checkpoint_id += 1
        stored = {
            index: StoredSubtask(managed_keyed=(handle,))
            for index, handle in enumerate(self._handles)
        }
        metadata = CheckpointMetadata(
            job_id="job",
            checkpoint_id=self._checkpoint_id,
            created_ms=0,
            duration_ms=0.0,
            writer="test",
            operators={uid: StoredOperator(len(stored), GROUPS, stored, key=tuple(self.key.names))},
            coordinator_states=progress_after_batch(0),
        )
        location = self.checkpoints.location(self._checkpoint_id)
        return complete_checkpoint(location, metadata).location.external_pointer

    def _run(
        self, rows: pa.Table, watermark: int, batch_time: int
    ) -> tuple[list[pa.RecordBatch], tuple[Any, ...]]:
        self._checkpoint_id += 1
        self.late_rows, self.next_timer = 0, None
        out: list[pa.RecordBatch] = []
        handles: tuple[Any, ...] = ()
        hashes = key_hash([rows.column(name).combine_chunks() for name in self.key.names])
        groups = hashes.to_numpy().astype(np.int64) % GROUPS
        for subtask in range(self.parallelism):
            own = key_group_range(GROUPS, self.parallelism, subtask)
            tables = open_tables(
                own,
                parts_of(self._handles, own),
                backend=self.backend,
                directory=QUICK_DISK if self.backend == "rocksdb" else None,
            )
            backend = KeyedStateBackend(tables, self.key, GROUPS, own)
            backend.advance_time(batch_time)
            function = self.make()
            function.initialize_state(
                FunctionInitializationContext(
                    operator_state_store=OperatorStateBackend(),
                    restored_checkpoint_id=None,
                    subtask_index=subtask,
                    parallelism=self.parallelism,
                    input_schema=rows.schema,
                    output_schema=self.output,
                    times=BatchTimes(batch_time, watermark, self.watermark),
                    open_keyed_state=partial(_same, backend),
                )
            )
            is_own = (groups >= own.start_key_group) & (groups <= own.end_key_group)
            mine = rows.filter(pa.array(is_own))
            out += function.process(iter(mine.to_batches(max_chunksize=3)))
            times = [self.next_timer, backend.next_timers()[0]]
            self.next_timer = min((time for time in times if time is not None), default=None)
            self.late_rows += getattr(function, "late_rows", 0)
            part = backend.snapshot(
                self._checkpoint_id, self.checkpoints.location(self._checkpoint_id)
            )
            handles += self.checkpoints.run(part)
            backend.close()
        return out, handles


def _same(backend: KeyedStateBackend) -> KeyedStateBackend:
    return backend
