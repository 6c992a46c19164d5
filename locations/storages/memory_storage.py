"""Checkpoints whose state is in their `_metadata`, which is in a file or in the memory of the driver."""

import uuid
from dataclasses import dataclass, field, replace

from holdfast.common import uripath
from holdfast.errors import InvalidRequestError
from holdfast.locations.storages.file_system_storage import (
    FileSystemCheckpointStorage,
    FileSystemCheckpointStorageAccess,
    FileSystemCheckpointStorageLocation,
    FileSystemCheckpointStreamFactory,
)
from holdfast.locations.storages.job_directory import savepoint_base
from holdfast.locations.storages.layout import check_job_id, check_marker, refuse_marker

MAX_STATE_BYTES = 5 << 20


@dataclass(frozen=True, slots=True)
class MemoryCheckpointStorage:
    """State in the handles of `_metadata`. For tests, and for jobs with little state.

    Args:
        max_state_bytes: Maximum number of bytes of one state; writing the first byte beyond it fails.
        directory: URI of the directory for `_metadata` files. Without one, completed checkpoints are in the memory of
            the driver and lost with it.
        savepoint_directory: URI of the default directory for savepoints.
        single_writer: As in `FileSystemCheckpointStorage`.

    Raises:
        InvalidRequestError: The limit is not positive, or a directory is not valid.

    Source:
        Flink, JobManagerCheckpointStorage; there a state that is too large fails only when it is finished.
    """

    max_state_bytes: int = MAX_STATE_BYTES
    directory: str | None = None
    savepoint_directory: str | None = None
    single_writer: bool = False
    _id: str = field(
        default_factory=lambda: uuid.uuid4().hex, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.max_state_bytes <= 0:
            message = f"maximum state size must be >= 1 byte, got {self.max_state_bytes}"
            raise InvalidRequestError(message)
        # The way to normalize a field of a frozen class.
        if self.directory is not None:
            directory = uripath.checkpoint_directory(self.directory)
            refuse_marker(directory, "memory storage has no state files")
            object.__setattr__(self, "directory", check_marker(directory))
        if self.savepoint_directory is not None:
            savepoints = savepoint_base(self.savepoint_directory)
            object.__setattr__(self, "savepoint_directory", savepoints)

    def create_checkpoint_storage(self, job_id: str, /) -> "MemoryCheckpointStorageAccess":
        files = FileSystemCheckpointStorage(
            self.directory or f"memory://{self._id}/checkpoints",
            savepoint_directory=self.savepoint_directory,
            single_writer=self.single_writer,
        )
        return MemoryCheckpointStorageAccess(
            files, check_job_id(job_id), self.max_state_bytes, self.directory is not None
        )


@dataclass(frozen=True)  # without slots, for `super()`
class MemoryCheckpointStorageAccess(FileSystemCheckpointStorageAccess):
    """One job's part of a `MemoryCheckpointStorage`."""

    max_state_bytes: int
    is_persistent: bool

    @property
    def _location_class(self) -> type[FileSystemCheckpointStorageLocation]:
        if self.is_persistent:
            return PersistentMetadataCheckpointStorageLocation
        return NonPersistentMetadataCheckpointStorageLocation

    def _factory(self, exclusive: str, *, shared: str) -> FileSystemCheckpointStreamFactory:
        factory = super()._factory(exclusive, shared=shared)
        return replace(
            factory,
            inline_threshold=self.max_state_bytes,
            write_buffer_bytes=0,
            has_files=False,
        )


class PersistentMetadataCheckpointStorageLocation(FileSystemCheckpointStorageLocation):
    """A pending checkpoint whose state will be in its `_metadata` file."""


class NonPersistentMetadataCheckpointStorageLocation(FileSystemCheckpointStorageLocation):
    """A pending checkpoint whose state and metadata stay in the memory of the driver."""
