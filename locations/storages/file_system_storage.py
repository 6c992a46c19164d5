"""Checkpoints in directories of a file system, the same over every store; with state in files, or in `_metadata` only."""

import logging
import uuid
from dataclasses import dataclass, field
from os import PathLike

from holdfast.common import uripath
from holdfast.errors import InvalidRequestError
from holdfast.locations.file_systems import abort_uploads, file_system_for, pending_uploads
from holdfast.locations.storages.completed import (
    FileSystemCompletedCheckpointStorageLocation,
    list_all,
)
from holdfast.locations.storages.contract import (
    CheckpointedStateScope,
    CheckpointStorageLocationReference,
)
from holdfast.locations.storages.file_system_streams import (
    FileSystemCheckpointMetadataOutputStream,
    FileSystemCheckpointStateOutputStream,
    Publication,
)
from holdfast.locations.storages.job_directory import (
    DirectoryOwnership,
    JobDirectory,
    new_savepoint_directory,
    savepoint_base,
)
from holdfast.locations.storages.layout import (
    JOB_ID,
    METADATA_FILE,
    check_job_id,
    check_marker,
    entropy_paths,
    entropy_root,
    refuse_marker,
    without_marker,
)

_log = logging.getLogger(__name__)

INLINE_THRESHOLD_BYTES = 20 << 10
MAX_INLINE_THRESHOLD_BYTES = 1 << 20
WRITE_BUFFER_BYTES = 32 << 10
MAX_STATE_BYTES = 5 << 20

# Distinguishes references from garbage; Flink writes the same four bytes before a path.
_REFERENCE_MAGIC = b"\x05\x5f\x3f\x18"


@dataclass(frozen=True, slots=True)
class FileSystemCheckpointStorage:
    """Checkpoints as directories with state files and a `_metadata` file.

    Args:
        directory: URI of the directory with the directories of all jobs. On an object store its
            last part may be `_entropy_`: state files have random characters there, so that the
            store can partition them; all other files are where they would be without that part.
        inline_threshold: Maximum number of bytes of a state that is in its handle instead of a file;
            0 to 1 MiB.
        write_buffer_bytes: Maximum number of buffered bytes; the threshold, if that is larger.
        savepoint_directory: URI of the default directory for savepoints.
        single_writer: The user's promise that one driver at a time runs a job, for stores that
            can't create a file exclusively.

    Raises:
        InvalidRequestError: A directory has no scheme or is a root, `_entropy_` is in an invalid
            place, or a number is out of bounds.

    Source:
        Flink, FileSystemCheckpointStorage; its write buffer has 4 KiB.
    """

    directory: str
    inline_threshold: int = INLINE_THRESHOLD_BYTES
    write_buffer_bytes: int = WRITE_BUFFER_BYTES
    savepoint_directory: str | None = None
    single_writer: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.inline_threshold <= MAX_INLINE_THRESHOLD_BYTES:
            message = (
                f"inline threshold must be 0 to {MAX_INLINE_THRESHOLD_BYTES} bytes, got "
                f"{self.inline_threshold}"
            )
            raise InvalidRequestError(message)
        if self.write_buffer_bytes < 0:
            message = f"write buffer must be >= 0 bytes, got {self.write_buffer_bytes}"
            raise InvalidRequestError(message)
        # The way to normalize a field of a frozen class.
        directory = check_marker(uripath.checkpoint_directory(self.directory))
        object.__setattr__(self, "directory", directory)
        if self.savepoint_directory is not None:
            savepoints = savepoint_base(self.savepoint_directory)
            object.__setattr__(self, "savepoint_directory", savepoints)

    def create_checkpoint_storage(self, job_id: str, /) -> "FileSystemCheckpointStorageAccess":
        file_system_for(self.directory)
        return FileSystemCheckpointStorageAccess(self, check_job_id(job_id))

    def jobs(self) -> list[str]:
        """Return the ids of the jobs with a directory here, sorted."""
        directory = without_marker(self.directory)
        entries = file_system_for(directory).list(directory)
        names = (uripath.name(entry.uri) for entry in entries if entry.is_directory)
        return sorted(name for name in names if JOB_ID.fullmatch(name))


def checkpoint_storage(
    directory: str | PathLike[str], *, single_writer: bool = False
) -> FileSystemCheckpointStorage:
    """Return the storage of checkpoints below a directory, chosen by the URI's scheme.

    Args:
        directory: URI, or a `pathlib.Path` for a local directory.
        single_writer: The promise that one driver at a time runs a job, for stores that
            can't create a file exclusively.

    Raises:
        InvalidRequestError: No scheme, no path, the root directory, or an unknown scheme.
    """
    storage = FileSystemCheckpointStorage(uripath.text(directory), single_writer=single_writer)
    file_system_for(storage.directory)
    return storage


@dataclass(frozen=True, slots=True)
class FileSystemCheckpointStreamFactory:
    """Creates state streams whose files start with a prefix, a URI; random characters replace its marker.

    Attributes:
        exclusive_prefix: The prefix of state that belongs to one checkpoint.
        shared_prefix: The prefix of state that several checkpoints may refer to.
        metadata_directory: The directory that will have `_metadata`.
        has_files: Whether state may become a file. If not, a state above the threshold is refused.
    """

    exclusive_prefix: str
    shared_prefix: str
    metadata_directory: str
    inline_threshold: int
    write_buffer_bytes: int
    has_files: bool = True

    def create_checkpoint_state_output_stream(
        self, scope: CheckpointedStateScope, /
    ) -> FileSystemCheckpointStateOutputStream:
        exclusive = scope is CheckpointedStateScope.EXCLUSIVE
        prefix = self.exclusive_prefix if exclusive else self.shared_prefix
        return FileSystemCheckpointStateOutputStream(
            prefix if self.has_files else None,
            inline_threshold=self.inline_threshold,
            buffer_bytes=self.write_buffer_bytes,
            durable_name=uripath.parent(prefix) != self.metadata_directory,
        )


@dataclass(frozen=True, slots=True)
class _PendingDirectory:
    """The directory of a pending checkpoint or savepoint."""

    external_pointer: str
    factory: FileSystemCheckpointStreamFactory
    single_writer: bool
    publication: Publication = field(
        default_factory=Publication, init=False, repr=False, compare=False
    )

    @property
    def location_reference(self) -> CheckpointStorageLocationReference:
        prefix = self.factory.exclusive_prefix
        return CheckpointStorageLocationReference(_REFERENCE_MAGIC + prefix.encode())

    @property
    def inline_threshold(self) -> int:
        return self.factory.inline_threshold

    def create_checkpoint_state_output_stream(
        self, scope: CheckpointedStateScope, /
    ) -> FileSystemCheckpointStateOutputStream:
        return self.factory.create_checkpoint_state_output_stream(scope)

    def create_metadata_output_stream(self) -> FileSystemCheckpointMetadataOutputStream:
        return FileSystemCheckpointMetadataOutputStream(
            self.external_pointer, single_writer=self.single_writer, publication=self.publication
        )

    def _may_be_completed(self) -> bool:
        """Return whether the store may still complete the checkpoint, now or much later."""
        if self.publication.is_under_way:
            _log.warning(
                "%s may still be completed by the store; it is kept, and swept later if it is not",
                self.external_pointer,
            )
        return self.publication.is_under_way


@dataclass(frozen=True, slots=True)
class FileSystemCheckpointStorageLocation(_PendingDirectory):
    """A pending checkpoint: one attempt at filling a `chk-<N>` directory.

    Each attempt of a driver has a random name, so that a failed one can delete the files of this driver and its tasks
    but not those of another driver. Shared files are deleted only if no driver can have resumed from this
    checkpoint and refer to them.
    """

    attempt: str

    def dispose_on_failure(self) -> None:
        if self._may_be_completed():
            return
        pointer = self.external_pointer
        file_system = file_system_for(pointer)
        entries = list(file_system.list(pointer))
        for entry in entries:
            if uripath.name(entry.uri) == METADATA_FILE and self._is_committed(entry.uri):
                _log.warning("checkpoint %s was completed after all; it is kept", pointer)
                return
        directories = [uripath.parent(self.factory.exclusive_prefix)]
        if not self.publication.may_have_succeeded:
            directories.append(uripath.parent(self.factory.shared_prefix))
        everywhere = [place for directory in directories for place in entropy_paths(directory)]
        entries += list_all([place for place in everywhere if place != pointer])
        file_system.delete([entry.uri for entry in entries if self._is_ours(entry.uri)])
        abort_uploads(
            upload
            for root in dict.fromkeys(entropy_root(directory) for directory in directories)
            for upload in pending_uploads(root)
            if self._is_ours(upload.uri) and uripath.parent(upload.uri) in everywhere
        )

    def _is_ours(self, uri: str) -> bool:
        # The second is the name of a file that is still being written.
        return uripath.name(uri).startswith((f"{self.attempt}-", f".{self.attempt}-"))

    def _is_committed(self, metadata: str) -> bool:
        """Return whether the metadata in the directory names files of this attempt."""
        # Not decoded, because it may be anything; the random digits can't be there by coincidence.
        with file_system_for(metadata).open(metadata) as stream:
            return f"{self.attempt}-".encode() in stream.read()


@dataclass(frozen=True, slots=True)
class FileSystemSavepointStorageLocation(_PendingDirectory):
    """A pending savepoint in a directory that no one else uses."""

    def dispose_on_failure(self) -> None:
        if self._may_be_completed():
            return
        pointer = self.external_pointer
        file_system = file_system_for(pointer)
        if any(uripath.name(entry.uri) == METADATA_FILE for entry in file_system.list(pointer)):
            _log.warning("savepoint %s was completed after all; it is kept", pointer)
            return
        file_system.delete_tree(pointer)


class PersistentMetadataCheckpointStorageLocation(FileSystemCheckpointStorageLocation):
    """A pending checkpoint whose state will be in its `_metadata` file."""


class NonPersistentMetadataCheckpointStorageLocation(FileSystemCheckpointStorageLocation):
    """A pending checkpoint whose state and metadata stay in the memory of the driver."""


@dataclass(frozen=True, slots=True)
class FileSystemCheckpointStorageAccess:
    """One job's part of a storage.

    Attributes:
        storage: The directories, and bounds of state in files.
        job_id: The job.
        location_class: The class of pending checkpoints.
        memory_bytes: Maximum number of bytes of a state if no state is in files.
    """

    storage: FileSystemCheckpointStorage
    job_id: str
    location_class: type[FileSystemCheckpointStorageLocation] = FileSystemCheckpointStorageLocation
    memory_bytes: int | None = None

    @property
    def directory(self) -> JobDirectory:
        """The job's directory."""
        return JobDirectory.below(
            self.storage.directory, self.job_id, single_writer=self.storage.single_writer
        )

    def initialize_base_locations_for_checkpoint(self) -> None:
        self.directory.prepare()

    def claim_job(self) -> DirectoryOwnership:
        return self.directory.claim()

    def initialize_location_for_checkpoint(
        self, checkpoint_id: int, /
    ) -> FileSystemCheckpointStorageLocation:
        directory = self.directory.checkpoint(checkpoint_id)
        file_system_for(directory).prepare_directory(directory)
        attempt = uuid.uuid4().hex[:8]
        exclusive = uripath.join(self.directory.exclusive(checkpoint_id), f"{attempt}-")
        factory = self._factory(exclusive, shared=self._shared_prefix(exclusive))
        return self.location_class(directory, factory, self.storage.single_writer, attempt)

    def initialize_location_for_savepoint(
        self, checkpoint_id: int, /, target: str | PathLike[str] | None = None
    ) -> FileSystemSavepointStorageLocation:
        self.directory.checkpoint(checkpoint_id)
        directory = new_savepoint_directory(self.job_id, target, self.storage.savepoint_directory)
        prefix = directory + "/"
        factory = self._factory(prefix, shared=prefix)
        return FileSystemSavepointStorageLocation(directory, factory, self.storage.single_writer)

    def completed_checkpoints(self) -> dict[int, FileSystemCompletedCheckpointStorageLocation]:
        return self.directory.completed_checkpoints()

    def resolve_checkpoint_storage_location(
        self, checkpoint_id: int, reference: CheckpointStorageLocationReference, /
    ) -> FileSystemCheckpointStreamFactory:
        directory = self.directory.exclusive(checkpoint_id)
        prefix = _decode_reference(reference) if reference.encoded else directory + "/"
        # All files of a savepoint are in its directory.
        is_checkpoint = uripath.parent(prefix) == directory
        return self._factory(
            prefix, shared=self._shared_prefix(prefix) if is_checkpoint else prefix
        )

    def _shared_prefix(self, exclusive_prefix: str) -> str:
        """Return the prefix of an attempt's shared files."""
        return f"{self.directory.shared}/{uripath.name(exclusive_prefix)}"

    def _factory(self, exclusive: str, *, shared: str) -> FileSystemCheckpointStreamFactory:
        has_files = self.memory_bytes is None
        return FileSystemCheckpointStreamFactory(
            exclusive_prefix=exclusive,
            shared_prefix=shared,
            metadata_directory=without_marker(uripath.parent(exclusive)),
            inline_threshold=self.memory_bytes or self.storage.inline_threshold,
            write_buffer_bytes=self.storage.write_buffer_bytes if has_files else 0,
            has_files=has_files,
        )


def _decode_reference(reference: CheckpointStorageLocationReference) -> str:
    """Return the prefix of exclusive files in a reference. Raises `InvalidRequestError`."""
    encoded = reference.encoded
    if not encoded.startswith(_REFERENCE_MAGIC) or len(encoded) == len(_REFERENCE_MAGIC):
        raise InvalidRequestError(f"not a location reference: {encoded[:64].hex()}")
    try:
        return encoded.removeprefix(_REFERENCE_MAGIC).decode()
    except UnicodeDecodeError as error:
        message = f"location reference is not a valid path: {encoded[:64].hex()}"
        raise InvalidRequestError(message) from error


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

    def create_checkpoint_storage(self, job_id: str, /) -> FileSystemCheckpointStorageAccess:
        files = FileSystemCheckpointStorage(
            self.directory or f"memory://{self._id}/checkpoints",
            savepoint_directory=self.savepoint_directory,
            single_writer=self.single_writer,
        )
        location_class = (
            PersistentMetadataCheckpointStorageLocation
            if self.directory is not None
            else NonPersistentMetadataCheckpointStorageLocation
        )
        return FileSystemCheckpointStorageAccess(
            files, check_job_id(job_id), location_class, self.max_state_bytes
        )
