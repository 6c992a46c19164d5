"""Completed checkpoints in the driver's memory: gone with it."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from holdfast.errors import CheckpointConflictError
from holdfast.locations.handles import ByteStreamStateHandle
from holdfast.locations.storages.contract import (
    CheckpointStorageLocationReference,
    CompletedCheckpoint,
)
from holdfast.locations.storages.gathered_metadata import GatheredMetadataOutputStream
from holdfast.locations.storages.loading import load_checkpoint
from holdfast.locations.storages.memory_streams import MemoryCheckpointStreamFactory
from holdfast.locations.storages.pointers import NOT_EXTERNALLY_ADDRESSABLE


class CompletedInMemory:
    """The completed checkpoints of one job, by id, and who owns it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._metadata: dict[int, bytes] = {}
        self.epoch = 0
        self._adopted: dict[int, bytes] = {}

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        # The list stays with the driver; a location that is sent elsewhere has its own metadata.
        return type(self), ()

    def add(self, checkpoint_id: int, metadata: bytes) -> None:
        with self._lock:
            if checkpoint_id in self._metadata:
                what = f"checkpoint {checkpoint_id}"
                raise CheckpointConflictError.exists(NOT_EXTERNALLY_ADDRESSABLE, what)
            self._metadata[checkpoint_id] = metadata

    def remove(self, checkpoint_id: int) -> None:
        with self._lock:
            self._metadata.pop(checkpoint_id, None)

    def locations(self) -> dict[int, "NonPersistentCompletedCheckpointStorageLocation"]:
        with self._lock:
            return self._locations()

    def claim(self) -> "MemoryOwnership":
        with self._lock:
            self.epoch += 1
            self._adopted = dict(self._metadata)
            locations = self._locations()
            completed = {number: load_checkpoint(locations[number]) for number in locations}
            return MemoryOwnership(self, self.epoch, completed)

    def is_past(self, checkpoint_id: int) -> bool:
        with self._lock:
            adopted = self._adopted.get(checkpoint_id)
            if adopted is not None and adopted is self._metadata.get(checkpoint_id):
                return False
            return any(other > checkpoint_id for other in self._metadata)

    def _locations(self) -> dict[int, "NonPersistentCompletedCheckpointStorageLocation"]:
        return {
            checkpoint_id: NonPersistentCompletedCheckpointStorageLocation(
                ByteStreamStateHandle(metadata), checkpoint_id, self
            )
            for checkpoint_id, metadata in sorted(self._metadata.items())
        }


class CompletedByJob:
    """The completed checkpoints of each job; they stay with the driver when this is sent away."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, CompletedInMemory] = {}

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()

    def of(self, job_id: str) -> CompletedInMemory:
        with self._lock:
            return self._jobs.setdefault(job_id, CompletedInMemory())


@dataclass(frozen=True, slots=True)
class MemoryOwnership:
    """A claim to a job whose checkpoints are in memory: good within this process."""

    _job: CompletedInMemory
    epoch: int
    completed: Mapping[int, CompletedCheckpoint]

    def check(self) -> None:
        newest = self._job.epoch
        if newest != self.epoch:
            raise CheckpointConflictError.taken_over(
                NOT_EXTERNALLY_ADDRESSABLE, newest=newest, own=self.epoch
            )

    def is_past(self, checkpoint_id: int, _commit_token: str, /) -> bool:
        return self._job.is_past(checkpoint_id)

    def has_ended_before(self, _checkpoint_id: int, _commit_token: str, /) -> bool:
        return False  # nobody claims what is in the memory of a process


@dataclass(frozen=True, slots=True)
class NonPersistentMetadataCheckpointStorageLocation(MemoryCheckpointStreamFactory):
    """A pending checkpoint in memory."""

    checkpoint_id: int
    _completed: CompletedInMemory

    @property
    def external_pointer(self) -> str:
        return NOT_EXTERNALLY_ADDRESSABLE

    @property
    def location_reference(self) -> CheckpointStorageLocationReference:
        return CheckpointStorageLocationReference()

    def create_metadata_output_stream(self) -> "NonPersistentMetadataOutputStream":
        return NonPersistentMetadataOutputStream(self.checkpoint_id, self._completed)

    def dispose_on_failure(self) -> None:
        """Nothing to delete: the handles go with whoever holds them."""


@dataclass(frozen=True, slots=True)
class NonPersistentCompletedCheckpointStorageLocation:
    """A completed checkpoint in memory."""

    metadata_handle: ByteStreamStateHandle
    checkpoint_id: int
    _completed: CompletedInMemory = field(repr=False, compare=False)

    @property
    def external_pointer(self) -> str:
        return NOT_EXTERNALLY_ADDRESSABLE

    def dispose_storage_location(self) -> None:
        self._completed.remove(self.checkpoint_id)


class NonPersistentMetadataOutputStream(
    GatheredMetadataOutputStream[NonPersistentCompletedCheckpointStorageLocation]
):
    """Metadata that stays in memory."""

    def __init__(self, checkpoint_id: int, completed: CompletedInMemory) -> None:
        super().__init__()
        self._checkpoint_id = checkpoint_id
        self._completed = completed

    def _publish(self, content: bytes) -> NonPersistentCompletedCheckpointStorageLocation:
        self._completed.add(self._checkpoint_id, content)
        return NonPersistentCompletedCheckpointStorageLocation(
            ByteStreamStateHandle(content), self._checkpoint_id, self._completed
        )
