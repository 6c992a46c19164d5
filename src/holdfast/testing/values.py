"""Metadata for tests."""

import uuid

from holdfast.locations.handles import (
    OperatorStateHandle,
    OperatorStateMode,
    StatePartitions,
    StreamStateHandle,
)
from holdfast.locations.metadata import CheckpointMetadata, StoredOperator, StoredSubtask


def metadata_of(
    *streams: StreamStateHandle,
    checkpoint_id: int = 1,
    commit_token: str | None = None,
    job_id: str = "job",
) -> CheckpointMetadata:
    """Return metadata of one operator; each subtask has one of the streams."""
    subtasks = {
        index: StoredSubtask(
            (
                OperatorStateHandle(
                    {
                        "list": StatePartitions(
                            OperatorStateMode.SPLIT_DISTRIBUTE, 0, stream.size, 0, 1
                        )
                    },
                    stream,
                ),
            )
        )
        for index, stream in enumerate(streams)
    }
    return CheckpointMetadata(
        job_id=job_id,
        checkpoint_id=checkpoint_id,
        commit_token=commit_token or uuid.uuid4().hex,
        created_ms=1_700_000_000_000,
        duration_ms=12.5,
        writer="holdfast tests",
        operators={
            "operator": StoredOperator(max(1, len(streams)), max(128, len(streams)), subtasks)
        },
        coordinator_states={"spark": b"\x00\xff"},
    )
