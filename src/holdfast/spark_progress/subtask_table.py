"""Statistics of the subtasks of a checkpoint, as an Arrow table."""

from collections.abc import Iterator
from os import PathLike
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.locations.coordination import find_checkpoint
from holdfast.locations.metadata import CheckpointMetadata
from holdfast.spark_progress.progress import SPARK, progress_of

if TYPE_CHECKING:
    import pyarrow as pa


def subtasks(pointer: str | PathLike[str]) -> "pa.Table":
    """Return the statistics of the subtasks of a checkpoint or savepoint, a row for each subtask.

    The pointer is that of `read_state`. Counts that were not recorded are null. Times are in milliseconds.

    Raises:
        CheckpointNotFoundError: There is no such checkpoint.
        CheckpointCorruptedError: Stored bytes are damaged.
    """
    import pyarrow as pa  # noqa: PLC0415  # commands load this package, and most of them need no Arrow

    schema = pa.schema(
        [
            ("job", pa.string()),
            ("checkpoint", pa.int64()),
            ("batch", pa.int64()),
            ("completed", pa.timestamp("ms", "UTC")),
            ("operator", pa.string()),
            ("parallelism", pa.int32()),
            ("max_parallelism", pa.int32()),
            ("subtask", pa.int32()),
            ("stored_bytes", pa.int64()),
            ("rows_in", pa.int64()),
            ("rows_out", pa.int64()),
            ("restore_ms", pa.float64()),
            ("process_ms", pa.float64()),
            ("sync_ms", pa.float64()),
            ("async_ms", pa.float64()),
            ("restored_from", pa.string()),
            ("rows_late", pa.int64()),
        ]
    )
    metadata = find_checkpoint(pointer).metadata
    return pa.Table.from_pylist(list(_subtask_rows(metadata)), schema)


def _subtask_rows(metadata: CheckpointMetadata) -> Iterator[dict[str, Any]]:
    has_progress = SPARK in metadata.coordinator_states
    batch = progress_of(metadata).batch_id if has_progress else None
    for uid, operator in metadata.operators.items():
        for subtask, state in sorted(operator.subtasks.items()):
            counted = state.statistics
            yield (msgspec.structs.asdict(counted) if counted else {}) | {
                "job": metadata.job_id,
                "checkpoint": metadata.checkpoint_id,
                "batch": batch,
                "completed": metadata.created_ms,
                "operator": uid,
                "parallelism": operator.parallelism,
                "max_parallelism": operator.max_parallelism,
                "subtask": subtask,
                "stored_bytes": state.stored_bytes,
            }
