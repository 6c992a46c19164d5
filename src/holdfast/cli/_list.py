"""`holdfast list`: what completed checkpoints there are."""

import argparse
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.cli._command import add_command, add_json
from holdfast.cli._output import bytes_text, print_json, print_table, say
from holdfast.errors import CheckpointError, CheckpointNotFoundError
from holdfast.locations import CheckpointMetadata, FileSystemCheckpointStorage, load_checkpoint

if TYPE_CHECKING:
    from holdfast.cli._command import Commands

_NUMBERS = ("checkpoint", "batch", "state", "metadata")


class _Progress(msgspec.Struct):
    """The part of `holdfast.spark.SparkProgress` that is printed."""

    batch_id: int


def add_to(commands: "Commands") -> None:
    """Add the command."""
    command = add_command(
        commands,
        "list",
        list_command,
        help="list the completed checkpoints below a checkpoint directory",
        description="List the completed checkpoints of all jobs below a checkpoint directory.",
        examples="""
            holdfast list file:///data/holdfast
            holdfast list s3://bucket/checkpoints --json
        """,
    )
    command.add_argument("directory", help="URI of the directory, such as file:///data/holdfast")
    add_json(command, "one object a checkpoint")


def list_command(options: argparse.Namespace) -> int:
    """Print one line for each completed checkpoint, oldest first within its job.

    Raises:
        CheckpointError: The last of those that made a checkpoint unreadable; the others are
            printed all the same.
    """
    failures: list[CheckpointError] = []
    rows = list(_rows(FileSystemCheckpointStorage(options.directory), failures))
    if options.json:
        print_json(rows)
    else:
        print_table([_text(row) for row in rows], right=_NUMBERS)
    for failure in failures[:-1]:
        say(str(failure))
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
                "state_bytes": metadata.state_bytes,
                "metadata_bytes": checkpoint.metadata_bytes,
            }


def _batch_of(metadata: CheckpointMetadata) -> int | None:
    """The micro-batch that a checkpoint of Spark's completes; read without importing Spark."""
    spark = metadata.coordinator_states.get("spark")
    return msgspec.msgpack.decode(spark, type=_Progress).batch_id if spark else None


def _text(row: dict[str, Any]) -> dict[str, str]:
    operators = [f"{uid} x {parallelism}" for uid, parallelism in row["operators"].items()]
    return {
        "job": row["job"],
        "checkpoint": str(row["checkpoint"]),
        "batch": "-" if row["batch"] is None else str(row["batch"]),
        "completed": row["completed"],
        "operators": ", ".join(operators),
        "state": bytes_text(row["state_bytes"]),
        "metadata": bytes_text(row["metadata_bytes"]),
    }
