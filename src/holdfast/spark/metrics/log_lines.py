"""The message about a completed checkpoint in the driver's log, as JSON with the names of the metrics."""

import msgspec

from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark.metrics import definitions as d
from holdfast.spark.metrics.samples import phases_s, subtask_statistics
from holdfast.spark_progress import checkpoint_statistics, iso_time

Fields = dict[str, str | int | float | dict[str, dict[str, float]] | None]


def checkpoint_fields(completed: CompletedCheckpoint, batch_id: int) -> Fields:
    """Return the figures of a checkpoint by the names of their metrics; those of operators by uid."""
    metadata, sizes = completed.metadata, checkpoint_statistics(completed)
    operators = {}
    for uid, state in metadata.operators.items():
        totals = sizes.operators[uid]
        phases = list(map(phases_s, subtask_statistics(state)))
        slowest = {
            phase: max((each[phase] for each in phases), default=0.0)
            for phase in ("restore", "process", "store")
        }
        operators[uid] = {
            d.PARALLELISM.name: totals.parallelism,
            d.ROWS_IN.name: totals.rows_in,
            d.ROWS_OUT.name: totals.rows_out,
            d.ROWS_LATE.name: totals.rows_late,
            d.WRITTEN_BYTES.name: totals.written_bytes,
            d.STATE_BYTES.name: sum(each.stored_bytes for each in state.subtasks.values()),
            d.RESTORE_DURATION.name: slowest["restore"],
            d.PROCESS_DURATION.name: slowest["process"],
            d.STORE_DURATION.name: slowest["store"],
        }
    return {
        "event": "checkpoint_completed",
        "completed": iso_time(metadata.created_ms),
        d.JOB: metadata.job_id,
        "batch_id": batch_id,
        "epoch": metadata.epoch,
        d.LAST_ID.name: metadata.checkpoint_id,
        d.LAST_DURATION.name: metadata.duration_ms / 1000,
        d.LAST_SIZE.name: sizes.new_bytes,
        d.LAST_FULL_SIZE.name: sizes.new_bytes + sizes.referenced_bytes,
        d.METADATA_SIZE.name: completed.metadata_bytes,
        "operators": operators,
    }


def json_line(fields: Fields) -> str:
    """Return the figures as one line of JSON."""
    return msgspec.json.encode(fields).decode()
