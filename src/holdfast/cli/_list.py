"""`holdfast list`: what completed checkpoints there are."""

import argparse
import json
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.errors import CheckpointError, CheckpointNotFoundError
from holdfast.locations import CheckpointMetadata, FileSystemCheckpointStorage, load_checkpoint

_COLUMNS = ("job", "checkpoint", "batch", "completed", "operators", "state bytes", "metadata bytes")


class _Progress(msgspec.Struct):
    """The part of `holdfast.spark.SparkProgress` that is printed."""

    batch_id: int


def list_command(options: argparse.Namespace) -> int:
    """Print one line for each completed checkpoint, oldest first within its job.

    Raises:
        CheckpointError: The last of those that made a checkpoint unreadable; the others are
            printed all the same.
    """
    failures: list[CheckpointError] = []
    rows = list(_rows(FileSystemCheckpointStorage(options.directory), failures))
    print(json.dumps(rows, indent=2) if options.json else _table(rows))
    for failure in failures[:-1]:
        print(f"holdfast: {failure}", file=sys.stderr)
    if failures:
        raise failures[-1]
    return 0 if rows else 1


def _rows(
    storage: FileSystemCheckpointStorage, failures: list[CheckpointError]
) -> Iterable[dict[str, Any]]:
    for job in storage.jobs():
        access = storage.create_checkpoint_storage(job)
        for location in access.completed_checkpoints().values():
            try:
                checkpoint = load_checkpoint(location)
            except CheckpointNotFoundError:
                continue  # the running job has deleted it since it was listed
            except CheckpointError as failure:
                failures.append(failure)
                continue
            metadata = checkpoint.metadata
            completed = datetime.fromtimestamp(metadata.created_ms / 1000, UTC)
            yield {
                "job": metadata.job_id,
                "checkpoint": metadata.checkpoint_id,
                "batch": _batch_of(metadata),
                "completed": completed.isoformat(timespec="seconds"),
                "operators": {
                    uid: operator.parallelism for uid, operator in metadata.operators.items()
                },
                "state bytes": metadata.state_bytes,
                "metadata bytes": checkpoint.metadata_bytes,
            }


def _batch_of(metadata: CheckpointMetadata) -> int | None:
    """The micro-batch that a checkpoint of Spark's completes; read without importing Spark."""
    spark = metadata.coordinator_states.get("spark")
    return msgspec.msgpack.decode(spark, type=_Progress).batch_id if spark else None


def _table(rows: list[dict[str, Any]]) -> str:
    """The rows with columns below each other."""
    lines = [_COLUMNS, *(tuple(_text(row[column]) for column in _COLUMNS) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{uid} x {parallelism}" for uid, parallelism in value.items())
    return "-" if value is None else str(value)
