"""Statistics of the subtasks of a checkpoint, as an Arrow table."""

from os import PathLike
from typing import TYPE_CHECKING

import msgspec

from holdfast.locations.coordination import find_checkpoint
from holdfast.spark_progress.checkpoint_view import CheckpointView

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
    checkpoint = CheckpointView.of(find_checkpoint(pointer))
    rows = [
        msgspec.structs.asdict(subtask)
        | {
            "job": checkpoint.job,
            "checkpoint": checkpoint.checkpoint,
            "batch": checkpoint.batch,
            "completed": checkpoint.completed_ms,
            "operator": uid,
            "parallelism": operator.parallelism,
            "max_parallelism": operator.max_parallelism,
            "restored_from": subtask.restored_from if subtask.is_recorded else None,
        }
        for uid, operator in checkpoint.operators.items()
        for subtask in operator.subtasks
    ]
    return pa.Table.from_pylist(rows, schema)
