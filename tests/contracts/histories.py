"""Checkpoint directories of jobs that never ran, for readers."""

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from contracts.progress import progress_after_batch

from holdfast.locations import (
    CheckpointMetadata,
    FileSystemCheckpointStorage,
    StoredOperator,
    StoredSubtask,
    SubtaskStatistics,
    complete_checkpoint,
)
from holdfast.locations.adapters import ByteStreamStateHandle
from holdfast.testing import metadata_of

HOSTILE = (
    "<script>document.title='run'</script>",
    '"><img src=x onerror=alert(1)>',
    "עברית \u202e 🦑",
)
"""Names of operators that a job can't have, because they name a directory."""


def write_checkpoints(
    directory: Path | str,
    ids: Sequence[int],
    *,
    job_id: str = "job",
    uids: Sequence[str] = ("operator",),
    parallelism: int = 2,
    newest_ms: int | None = None,
) -> FileSystemCheckpointStorage:
    """Complete checkpoints one second apart; higher subtasks have more state.

    Args:
        directory: The checkpoint directory, or its URI.
        ids: Checkpoint ids; batch ids are one less.
        job_id: The job.
        uids: Uids of the job's operators.
        parallelism: Number of subtasks of each operator.
        newest_ms: Time of the last checkpoint; by default now.
    """
    uri = directory if isinstance(directory, str) else f"file://{directory}"
    storage = FileSystemCheckpointStorage(uri)
    access = storage.create_checkpoint_storage(job_id)
    access.initialize_base_locations_for_checkpoint()
    newest = time.time_ns() // 1_000_000 if newest_ms is None else newest_ms
    for age, number in enumerate(reversed(ids)):
        metadata = checkpoint_metadata(
            number,
            job_id=job_id,
            uids=uids,
            parallelism=parallelism,
            created_ms=newest - 1000 * age,
        )
        complete_checkpoint(access.initialize_location_for_checkpoint(number), metadata)
    return storage


def checkpoint_metadata(
    number: int, *, job_id: str, uids: Sequence[str], parallelism: int, created_ms: int
) -> CheckpointMetadata:
    """Return metadata like that of a job on Spark; subtask i has read 10 (i + 1) rows."""
    streams = [ByteStreamStateHandle(bytes(100 * (index + 1))) for index in range(parallelism)]
    whole = metadata_of(*streams, checkpoint_id=number)
    [operator] = whole.operators.values()
    subtasks = {
        index: msgspec.structs.replace(state, statistics=_statistics(index, state))
        for index, state in operator.subtasks.items()
    }
    return msgspec.structs.replace(
        whole,
        job_id=job_id,
        created_ms=created_ms,
        operators={
            uid: StoredOperator(parallelism, max(128, parallelism), subtasks) for uid in uids
        },
        coordinator_states=progress_after_batch(number - 1),
    )


def _statistics(index: int, state: StoredSubtask) -> SubtaskStatistics:
    return SubtaskStatistics(
        rows_in=10 * (index + 1),
        rows_out=5,
        state_bytes=sum(stream.size for stream in state.streams()),
        restore_ms=1.0,
        process_ms=2.0 * (index + 1),
        sync_ms=0.5,
        async_ms=0.25,
        restored_from="worker",
    )
