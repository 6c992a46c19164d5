"""Checkpoints whose state travels in handles: in the driver's memory, or in `_metadata` files."""

from dataclasses import dataclass, field
from os import PathLike

from holdfast.common import uripath
from holdfast.errors import InvalidRequestError
from holdfast.locations.file_systems import file_system_for
from holdfast.locations.storages.contract import (
    CheckpointStorageAccess,
    CheckpointStorageLocationReference,
    check_checkpoint_id,
    check_job_id,
)
from holdfast.locations.storages.entropy import check_marker, refuse_marker
from holdfast.locations.storages.file_system_completed import (
    FileSystemCompletedCheckpointStorageLocation,
)
from holdfast.locations.storages.file_system_streams import FileSystemCheckpointMetadataOutputStream
from holdfast.locations.storages.job_directory import (
    JobDirectory,
    new_savepoint_directory,
    savepoint_base,
)
from holdfast.locations.storages.memory_streams import (
    MemoryCheckpointStreamFactory,
)
from holdfast.locations.storages.non_persistent_location import (
    CompletedByJob,
    CompletedInMemory,
    MemoryOwnership,
    NonPersistentCompletedCheckpointStorageLocation,
    NonPersistentMetadataCheckpointStorageLocation,
)
from holdfast.locations.storages.ownership import DirectoryOwnership
from holdfast.locations.storages.pointers import resolve_pointer

MAX_STATE_BYTES = 5 << 20


@dataclass(frozen=True, slots=True)
class MemoryCheckpointStorage:
    """State inline in handles. For tests, and for jobs with little state.

    Args:
        max_state_bytes: Most bytes of one state; writing the first byte over it fails.
        directory: URI of the directory for `_metadata` files, which hold the state too; without
            one, completed checkpoints are kept in this object, and lost with the driver.
        savepoint_directory: URI of the directory for savepoints that name no other.
        single_writer: As in `FileSystemCheckpointStorage`.

    Raises:
        InvalidRequestError: The limit is not positive, or a directory can't be used.

    Source:
        Flink, JobManagerCheckpointStorage; there a state that is too large fails only when it
        is finished.
    """

    max_state_bytes: int = MAX_STATE_BYTES
    directory: str | None = None
    savepoint_directory: str | None = None
    single_writer: bool = False
    _jobs: CompletedByJob = field(default_factory=CompletedByJob, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.max_state_bytes <= 0:
            message = f"maximum state size of {self.max_state_bytes} bytes is not positive"
            raise InvalidRequestError(message)
        # The way to normalize a field of a frozen class.
        if self.directory is not None:
            directory = uripath.checkpoint_directory(self.directory)
            refuse_marker(directory, "memory storage has no state files")
            object.__setattr__(self, "directory", check_marker(directory))
        if self.savepoint_directory is not None:
            savepoints = savepoint_base(self.savepoint_directory)
            object.__setattr__(self, "savepoint_directory", savepoints)

    def create_checkpoint_storage(self, job_id: str, /) -> CheckpointStorageAccess:
        check_job_id(job_id)
        if self.directory is None:
            return MemoryCheckpointStorageAccess(self, job_id, self._jobs.of(job_id))
        directory = JobDirectory.below(self.directory, job_id, single_writer=self.single_writer)
        return PersistentMetadataCheckpointStorageAccess(self, job_id, directory)

    def resolve_checkpoint(
        self, pointer: str | PathLike[str], /
    ) -> FileSystemCompletedCheckpointStorageLocation:
        return resolve_pointer(pointer)


@dataclass(frozen=True, slots=True)
class _InlineStateAccess:
    """Storage of one job whose tasks need no location; its savepoints are directories."""

    storage: MemoryCheckpointStorage
    job_id: str

    def initialize_location_for_savepoint(
        self, checkpoint_id: int, /, target: str | PathLike[str] | None = None
    ) -> "PersistentMetadataCheckpointStorageLocation":
        check_checkpoint_id(checkpoint_id)
        directory = new_savepoint_directory(self.job_id, target, self.storage.savepoint_directory)
        return self._in_directory(directory, is_savepoint=True)

    def resolve_checkpoint(self, pointer: str, /) -> FileSystemCompletedCheckpointStorageLocation:
        return resolve_pointer(pointer)

    def resolve_checkpoint_storage_location(
        self, checkpoint_id: int, reference: CheckpointStorageLocationReference, /
    ) -> MemoryCheckpointStreamFactory:
        check_checkpoint_id(checkpoint_id)
        if reference.encoded:
            message = f"not a reference to memory storage: {reference.encoded[:64].hex()}"
            raise InvalidRequestError(message)
        return MemoryCheckpointStreamFactory(self.storage.max_state_bytes)

    def _in_directory(
        self, directory: str, *, is_savepoint: bool
    ) -> "PersistentMetadataCheckpointStorageLocation":
        return PersistentMetadataCheckpointStorageLocation(
            self.storage.max_state_bytes, directory, self.storage.single_writer, is_savepoint
        )


@dataclass(frozen=True, slots=True)
class MemoryCheckpointStorageAccess(_InlineStateAccess):
    """One job's checkpoints in this process."""

    _completed: CompletedInMemory

    def initialize_base_locations_for_checkpoint(self) -> None:
        """Nothing to make."""

    def claim_job(self) -> MemoryOwnership:
        return self._completed.claim()

    def initialize_location_for_checkpoint(
        self, checkpoint_id: int, /
    ) -> NonPersistentMetadataCheckpointStorageLocation:
        check_checkpoint_id(checkpoint_id)
        return NonPersistentMetadataCheckpointStorageLocation(
            self.storage.max_state_bytes, checkpoint_id, self._completed
        )

    def completed_checkpoints(
        self,
    ) -> dict[int, NonPersistentCompletedCheckpointStorageLocation]:
        return self._completed.locations()


@dataclass(frozen=True, slots=True)
class PersistentMetadataCheckpointStorageAccess(_InlineStateAccess):
    """One job's checkpoints as files that hold everything."""

    directory: JobDirectory

    def initialize_base_locations_for_checkpoint(self) -> None:
        self.directory.prepare()

    def claim_job(self) -> DirectoryOwnership:
        return self.directory.claim()

    def initialize_location_for_checkpoint(
        self, checkpoint_id: int, /
    ) -> "PersistentMetadataCheckpointStorageLocation":
        directory = self.directory.checkpoint(checkpoint_id)
        file_system_for(directory).prepare_directory(directory)
        return self._in_directory(directory, is_savepoint=False)

    def completed_checkpoints(self) -> dict[int, FileSystemCompletedCheckpointStorageLocation]:
        return self.directory.completed_checkpoints()


@dataclass(frozen=True, slots=True)
class PersistentMetadataCheckpointStorageLocation(MemoryCheckpointStreamFactory):
    """A pending checkpoint or savepoint whose state will be in its `_metadata` file."""

    directory: str
    single_writer: bool
    is_savepoint: bool

    @property
    def external_pointer(self) -> str:
        return self.directory

    @property
    def location_reference(self) -> CheckpointStorageLocationReference:
        return CheckpointStorageLocationReference()

    def create_metadata_output_stream(self) -> FileSystemCheckpointMetadataOutputStream:
        return FileSystemCheckpointMetadataOutputStream(
            self.directory, single_writer=self.single_writer
        )

    def dispose_on_failure(self) -> None:
        if self.is_savepoint:  # nobody else knows its directory
            file_system_for(self.directory).delete_empty_directory(self.directory)
