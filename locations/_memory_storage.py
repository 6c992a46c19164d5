"""Checkpoints without a directory: state in handles, metadata in the driver's memory."""

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import NoReturn, Self

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointNotFoundError,
    InvalidRequestError,
    StreamClosedError,
)
from holdfast.locations._discarded_unless_kept import DiscardedUnlessKept
from holdfast.locations._file_system import BytesLike
from holdfast.locations._gathered_metadata import GatheredMetadataOutputStream
from holdfast.locations._handles import ByteStreamStateHandle
from holdfast.locations._storage import (
    CheckpointedStateScope,
    CheckpointStorageLocationReference,
    check_checkpoint_id,
    check_job_id,
)

MAX_STATE_BYTES = 5 << 20

NOT_EXTERNALLY_ADDRESSABLE = "<checkpoint-not-externally-addressable>"
"""The pointer of checkpoints that live in the driver's memory alone."""


class _CompletedInMemory:
    """The completed checkpoints of one job, by id."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._metadata: dict[int, bytes] = {}

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        # The list stays with the driver; a location that is sent elsewhere has its own metadata.
        return type(self), ()

    def add(self, checkpoint_id: int, metadata: bytes) -> None:
        with self._lock:
            if checkpoint_id in self._metadata:
                message = f"checkpoint {checkpoint_id} exists already"
                raise CheckpointConflictError(message, NOT_EXTERNALLY_ADDRESSABLE)
            self._metadata[checkpoint_id] = metadata

    def remove(self, checkpoint_id: int) -> None:
        with self._lock:
            self._metadata.pop(checkpoint_id, None)

    def locations(self) -> dict[int, "NonPersistentCompletedCheckpointStorageLocation"]:
        with self._lock:
            return {
                checkpoint_id: NonPersistentCompletedCheckpointStorageLocation(
                    ByteStreamStateHandle(metadata), checkpoint_id, self
                )
                for checkpoint_id, metadata in sorted(self._metadata.items())
            }


class _Jobs(defaultdict[str, _CompletedInMemory]):
    """The completed checkpoints of each job; they stay with the driver when this is sent away."""

    def __init__(self) -> None:
        super().__init__(_CompletedInMemory)

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()


@dataclass(frozen=True, slots=True)
class MemoryCheckpointStorage:
    """State inline in handles, completed checkpoints in this object: gone with the driver.

    Args:
        max_state_bytes: Most bytes of one state; writing the first byte over it fails.

    Raises:
        InvalidRequestError: The limit is not positive.

    Source:
        Flink, JobManagerCheckpointStorage without a directory; there a state that is too large
        fails only when it is finished.
    """

    max_state_bytes: int = MAX_STATE_BYTES
    _jobs: _Jobs = field(default_factory=_Jobs, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.max_state_bytes <= 0:
            message = f"maximum state size of {self.max_state_bytes} bytes is not positive"
            raise InvalidRequestError(message)

    def create_checkpoint_storage(self, job_id: str, /) -> "MemoryCheckpointStorageAccess":
        return MemoryCheckpointStorageAccess(
            self.max_state_bytes, job_id, self._jobs[check_job_id(job_id)]
        )

    def resolve_checkpoint(self, pointer: str | PathLike[str], /) -> NoReturn:
        raise _not_addressable(pointer)


@dataclass(frozen=True, slots=True)
class MemoryCheckpointStorageAccess:
    """One job's checkpoints in this process."""

    max_state_bytes: int
    job_id: str
    _completed: _CompletedInMemory

    @property
    def supports_highly_available_storage(self) -> bool:
        return False

    def initialize_base_locations_for_checkpoint(self) -> None:
        """Nothing to make."""

    def initialize_location_for_checkpoint(
        self, checkpoint_id: int, /
    ) -> "NonPersistentMetadataCheckpointStorageLocation":
        check_checkpoint_id(checkpoint_id)
        return NonPersistentMetadataCheckpointStorageLocation(
            self.max_state_bytes, checkpoint_id, self._completed
        )

    def completed_checkpoints(
        self,
    ) -> dict[int, "NonPersistentCompletedCheckpointStorageLocation"]:
        return self._completed.locations()

    def resolve_checkpoint(self, pointer: str, /) -> NoReturn:
        raise _not_addressable(pointer)

    def resolve_checkpoint_storage_location(
        self, checkpoint_id: int, reference: CheckpointStorageLocationReference, /
    ) -> "MemoryCheckpointStreamFactory":
        check_checkpoint_id(checkpoint_id)
        if reference.encoded:
            message = f"not a reference to memory storage: {reference.encoded[:64].hex()}"
            raise InvalidRequestError(message)
        return MemoryCheckpointStreamFactory(self.max_state_bytes)


@dataclass(frozen=True, slots=True)
class MemoryCheckpointStreamFactory:
    """Makes streams that gather state in memory."""

    max_state_bytes: int

    def create_checkpoint_state_output_stream(
        self, _scope: CheckpointedStateScope, /
    ) -> "MemoryCheckpointOutputStream":
        return MemoryCheckpointOutputStream(self.max_state_bytes)


@dataclass(frozen=True, slots=True)
class NonPersistentMetadataCheckpointStorageLocation:
    """A pending checkpoint in memory."""

    max_state_bytes: int
    checkpoint_id: int
    _completed: _CompletedInMemory

    @property
    def external_pointer(self) -> str:
        return NOT_EXTERNALLY_ADDRESSABLE

    @property
    def location_reference(self) -> CheckpointStorageLocationReference:
        return CheckpointStorageLocationReference()

    def create_checkpoint_state_output_stream(
        self, _scope: CheckpointedStateScope, /
    ) -> "MemoryCheckpointOutputStream":
        return MemoryCheckpointOutputStream(self.max_state_bytes)

    def create_metadata_output_stream(self) -> "NonPersistentMetadataOutputStream":
        return NonPersistentMetadataOutputStream(self.checkpoint_id, self._completed)

    def dispose_on_failure(self) -> None:
        """Nothing to delete: the handles go with whoever holds them."""


@dataclass(frozen=True, slots=True)
class NonPersistentCompletedCheckpointStorageLocation:
    """A completed checkpoint in memory."""

    metadata_handle: ByteStreamStateHandle
    checkpoint_id: int
    _completed: _CompletedInMemory = field(repr=False, compare=False)

    @property
    def external_pointer(self) -> str:
        return NOT_EXTERNALLY_ADDRESSABLE

    def dispose_storage_location(self) -> None:
        self._completed.remove(self.checkpoint_id)


class MemoryCheckpointOutputStream(DiscardedUnlessKept):
    """State gathered in memory, up to a limit.

    Source:
        Flink, MemCheckpointStreamFactory.MemoryCheckpointOutputStream. Ours fails at the first
        byte over the limit, refuses writes after `close`, and takes an empty write for nothing.
    """

    def __init__(self, max_state_bytes: int) -> None:
        self._max_state_bytes = max_state_bytes
        self._data = bytearray()
        self._lock = threading.Lock()

    def write(self, data: BytesLike, /) -> int:
        view = memoryview(data).cast("B")
        with self._lock:
            self._check_open()
            if len(self._data) + len(view) > self._max_state_bytes:
                message = (
                    f"state has more than the {self._max_state_bytes} bytes that memory storage "
                    "takes for one state; use a checkpoint directory"
                )
                raise InvalidRequestError(message)
            self._data += view
        return len(view)

    def tell(self) -> int:
        return len(self._data)

    def close_and_get_handle(self) -> ByteStreamStateHandle | None:
        with self._lock:
            self._check_open()
            self._finished = True
            return ByteStreamStateHandle(bytes(self._data)) if self._data else None

    def close(self) -> None:
        with self._lock:
            self._finished = True
            self._data = bytearray()

    def _check_open(self) -> None:
        if self._finished:
            raise StreamClosedError("state stream is closed or discarded already")


class NonPersistentMetadataOutputStream(
    GatheredMetadataOutputStream[NonPersistentCompletedCheckpointStorageLocation]
):
    """Metadata that stays in memory."""

    def __init__(self, checkpoint_id: int, completed: _CompletedInMemory) -> None:
        super().__init__()
        self._checkpoint_id = checkpoint_id
        self._completed = completed

    def _publish(self, content: bytes) -> NonPersistentCompletedCheckpointStorageLocation:
        self._completed.add(self._checkpoint_id, content)
        return NonPersistentCompletedCheckpointStorageLocation(
            ByteStreamStateHandle(content), self._checkpoint_id, self._completed
        )


def _not_addressable(pointer: str | PathLike[str]) -> CheckpointNotFoundError:
    message = "memory storage keeps no checkpoint that a pointer leads to; use a directory"
    return CheckpointNotFoundError(message, fspath(pointer))
