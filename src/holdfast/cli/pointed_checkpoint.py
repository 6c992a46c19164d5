"""Shared by commands about one checkpoint: they find it by a pointer, and print it in a line."""

import argparse
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.cli.output import say, time_text
from holdfast.cli.stores import use_stores
from holdfast.common import uripath
from holdfast.errors import CheckpointNotFoundError
from holdfast.locations.coordination import (
    find_checkpoint,
    is_gone,
    is_savepoint,
    read_claim,
    size_of,
)
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark_progress import SPARK, SparkProgress, all_streams, directories_of, progress_of

_Result = TypeVar("_Result")

_MAX_ATTEMPTS = 20

POINTER_HELP = (
    "URI of the directory of a checkpoint or savepoint, or of its _metadata; of a job or a "
    "checkpoint directory, for the newest checkpoint there"
)


def pointed(options: argparse.Namespace, pointer: str) -> CompletedCheckpoint:
    """The checkpoint that a pointer means; afterwards the stores of all its files can be reached.

    Raises:
        CheckpointNotFoundError: There is none.
        CheckpointError: The checkpoint can't be read.
    """
    use_stores(options, pointer)
    checkpoint = find_checkpoint(pointer)
    reach(options, checkpoint)
    return checkpoint


def follow(
    options: argparse.Namespace,
    pointer: str,
    checkpoint: CompletedCheckpoint,
    use: Callable[[CompletedCheckpoint], _Result],
) -> _Result:
    """Use a checkpoint, and start over with a newer one each time that its job deletes it meanwhile.

    Args:
        options: The command's options.
        pointer: The pointer that the user gave.
        checkpoint: The checkpoint that it means.
        use: Reads the checkpoint. It has no effect if a file is missing.

    Raises:
        CheckpointNotFoundError: The pointer means this checkpoint alone, and it was deleted; or a file of it is
            missing; or the job deletes each newer one, too.
    """
    for _ in range(_MAX_ATTEMPTS):
        try:
            return use(checkpoint)
        except CheckpointNotFoundError as error:
            if not is_gone(checkpoint):
                raise
            gone = checkpoint.location.external_pointer
            try:
                checkpoint = pointed(options, pointer)
            except CheckpointNotFoundError:
                message = (
                    "the job has deleted this checkpoint while it was read; name the job's directory "
                    f"for its newest checkpoint, {uripath.parent(gone)}"
                )
                raise CheckpointNotFoundError(message, gone) from error
            say(f"{gone} was deleted by its job while it was read; starting over with the newest")
    message = (
        "the job deletes checkpoints faster than they can be read; keep more of them "
        "(spark.holdfast.checkpoint.num-retained), or take a savepoint"
    )
    raise CheckpointNotFoundError(message, pointer)


def reach(options: argparse.Namespace, *checkpoints: CompletedCheckpoint) -> None:
    """Make the stores reachable that have files of these checkpoints."""
    use_stores(options, *directories_of(*checkpoints))


def progress_in(checkpoint: CompletedCheckpoint) -> SparkProgress | None:
    """The progress of Spark that a checkpoint has; None if the checkpoint isn't one of Spark's."""
    is_there = SPARK in checkpoint.metadata.coordinator_states
    return progress_of(checkpoint.metadata) if is_there else None


def summary(checkpoint: CompletedCheckpoint) -> dict[str, Any]:
    """A checkpoint in a few values, which are the same in the JSON of all commands.

    Raises:
        CheckpointCorruptedError: Spark's part of the checkpoint, or who has claimed it, can't be read.
    """
    metadata = checkpoint.metadata
    pointer = checkpoint.location.external_pointer
    progress = progress_in(checkpoint)
    size = size_of(checkpoint, all_streams(checkpoint))
    holder = read_claim(pointer)
    return {
        "kind": "savepoint" if is_savepoint(pointer) else "checkpoint",
        "job": metadata.job_id,
        "checkpoint": metadata.checkpoint_id,
        "pointer": pointer,
        "batch": None if progress is None else progress.batch_id,
        "query_name": progress.query_name if progress is not None else "",
        "completed": time_text(metadata.created_ms),
        "operators": {uid: operator.parallelism for uid, operator in metadata.operators.items()},
        "new_bytes": size.new_bytes,
        "referenced_bytes": size.referenced_bytes,
        "total_bytes": size.total_bytes,
        "state_bytes": metadata.state_bytes,
        "metadata_bytes": checkpoint.metadata_bytes,
        "claimed_by": None
        if holder is None
        else {
            "job": holder.job_id,
            "directory": holder.directory,
            "claimed": time_text(holder.claimed_ms),
        },
        "has_claimed": [claim.pointer for claim in metadata.claimed],
    }
