"""Checkpoints with states, written without a job."""

from collections.abc import Callable
from typing import Any

from contracts.elements import list_state
from contracts.progress import progress_after_batch

from holdfast.backends import OperatorStateBackend
from holdfast.backends.snapshot import Compression
from holdfast.locations import (
    CheckpointMetadata,
    FileSystemCheckpointStorage,
    StoredOperator,
    complete_checkpoint,
)
from holdfast.locations.adapters import CheckpointStorageLocation

Fill = Callable[[OperatorStateBackend, int], object]


class Checkpoint:
    """A checkpoint in progress, below a directory."""

    def __init__(self, directory: str, inline_threshold: int = 0) -> None:
        storage = FileSystemCheckpointStorage(directory, inline_threshold=inline_threshold)
        access = storage.create_checkpoint_storage("job")
        access.initialize_base_locations_for_checkpoint()
        self.location: CheckpointStorageLocation = access.initialize_location_for_checkpoint(1)
        self.operators: dict[str, StoredOperator] = {}

    def add(
        self, uid: str, fill: Fill, *, parallelism: int = 1, compression: Compression | None = None
    ) -> None:
        """Add an operator; `fill` adds state to the backend of each subtask."""
        subtasks = {}
        for subtask in range(parallelism):
            backend = OperatorStateBackend()
            fill(backend, subtask)
            snapshot = backend.snapshot(self.location, compression=compression).run()
            subtasks[subtask] = snapshot.state
        self.operators[uid] = StoredOperator(parallelism, 128, subtasks)

    def complete(self) -> str:
        """Publish the checkpoint; returns its pointer."""
        metadata = CheckpointMetadata(
            job_id="job",
            checkpoint_id=1,
            created_ms=1_700_000_000_000,
            duration_ms=1,
            writer="test",
            operators=self.operators,
            coordinator_states=progress_after_batch(0),
        )
        return complete_checkpoint(self.location, metadata).location.external_pointer


def one_state(checkpoint: Checkpoint, type: Any, values: list[Any], **options: Any) -> str:
    """Complete a checkpoint with a list state of one operator; returns its pointer."""
    checkpoint.add("op", lambda backend, _: list_state(backend, "s", type).add_all(values))
    return checkpoint.complete()
