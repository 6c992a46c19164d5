"""Checkpoints in directories of a file system, the same over every store."""

import logging
import uuid
from dataclasses import dataclass, field
from os import PathLike

from holdfast.common import uripath
from holdfast.errors import InvalidRequestError
from holdfast.locations.file_systems import abort_uploads, file_system_for, pending_uploads
from holdfast.locations.storages.contract import (
    JOB_ID,
    METADATA_FILE,
    CheckpointedStateScope,
    CheckpointStorageLocationReference,
    check_job_id,
)
from holdfast.locations.storages.entropy import (
    check_marker,
    common_directory,
    spread_everywhere,
    without_marker,
)
from holdfast.locations.storages.file_system_completed import (
    FileSystemCompletedCheckpointStorageLocation,
)
from holdfast.locations.storages.file_system_streams import (
    FileSystemCheckpointMetadataOutputStream,
    FileSystemCheckpointStateOutputStream,
    Publication,
)
from holdfast.locations.storages.job_directory import (
    JobDirectory,
    new_savepoint_directory,
    savepoint_base,
)
from holdfast.locations.storages.listings import list_all
from holdfast.locations.storages.location_references import decode_reference, encode_reference
from holdfast.locations.storages.ownership import DirectoryOwnership
from holdfast.locations.storages.pointers import resolve_pointer

_log = logging.getLogger(__name__)

INLINE_THRESHOLD_BYTES = 20 << 10
MAX_INLINE_THRESHOLD_BYTES = 1 << 20
WRITE_BUFFER_BYTES = 32 << 10


@dataclass(frozen=True, slots=True)
class FileSystemCheckpointStorage:
    """Checkpoints as directories with state files and a `_metadata` file.

    Args:
        directory: URI of the directory below which every job gets its own. On an object store its
            last part may be `_entropy_`: state files have random characters there, so that the
            store can spread them; all else is where it would be without that part.
        inline_threshold: Most bytes of a state that travel in its handle instead of in a file;
            0 to 1 MiB.
        write_buffer_bytes: Bytes held back before they are written; at least the threshold
            takes effect.
        savepoint_directory: URI of the directory for savepoints that name no other.
        single_writer: The user's promise that one driver at a time runs a job, for stores that
            can't create a file only if it is not there yet.

    Raises:
        InvalidRequestError: A directory has no scheme or is a root, or `_entropy_` where that
            can't be, or a number is out of bounds.

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
                f"inline threshold is {self.inline_threshold} bytes; "
                f"it must be between 0 and {MAX_INLINE_THRESHOLD_BYTES}"
            )
            raise InvalidRequestError(message)
        if self.write_buffer_bytes < 0:
            message = f"write buffer of {self.write_buffer_bytes} bytes is negative"
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

    def resolve_checkpoint(
        self, pointer: str | PathLike[str], /
    ) -> FileSystemCompletedCheckpointStorageLocation:
        return resolve_pointer(pointer)

    def jobs(self) -> list[str]:
        """Ids of the jobs that have a directory here, sorted."""
        directory = without_marker(self.directory)
        entries = file_system_for(directory).list(directory)
        names = (uripath.name(entry.uri) for entry in entries if entry.is_directory)
        return sorted(name for name in names if JOB_ID.fullmatch(name))


def checkpoint_storage(
    directory: str | PathLike[str], *, single_writer: bool = False
) -> FileSystemCheckpointStorage:
    """The storage of checkpoints below a directory, picked by the URI's scheme.

    Args:
        directory: URI, or a `pathlib.Path` for a local directory.
        single_writer: The promise that one driver at a time runs a job, which stores need that
            can't create a file only if it is not there yet.

    Raises:
        InvalidRequestError: No scheme, no path, the root directory, or an unknown scheme.
    """
    storage = FileSystemCheckpointStorage(uripath.text(directory), single_writer=single_writer)
    file_system_for(storage.directory)
    return storage


@dataclass(frozen=True, slots=True)
class FileSystemCheckpointStorageAccess:
    """One job's part of a `FileSystemCheckpointStorage`."""

    storage: FileSystemCheckpointStorage
    job_id: str

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
    ) -> "FileSystemCheckpointStorageLocation":
        directory = self.directory.checkpoint(checkpoint_id)
        file_system_for(directory).prepare_directory(directory)
        attempt = uuid.uuid4().hex[:8]
        exclusive = uripath.join(self.directory.exclusive(checkpoint_id), f"{attempt}-")
        factory = self._factory(exclusive, shared=self._shared(exclusive))
        return FileSystemCheckpointStorageLocation(
            directory, factory, self.storage.single_writer, attempt
        )

    def initialize_location_for_savepoint(
        self, checkpoint_id: int, /, target: str | PathLike[str] | None = None
    ) -> "FileSystemSavepointStorageLocation":
        self.directory.checkpoint(checkpoint_id)
        directory = new_savepoint_directory(self.job_id, target, self.storage.savepoint_directory)
        prefix = directory + "/"
        factory = self._factory(prefix, shared=prefix)
        return FileSystemSavepointStorageLocation(directory, factory, self.storage.single_writer)

    def completed_checkpoints(self) -> dict[int, FileSystemCompletedCheckpointStorageLocation]:
        return self.directory.completed_checkpoints()

    def resolve_checkpoint(self, pointer: str, /) -> FileSystemCompletedCheckpointStorageLocation:
        return resolve_pointer(pointer)

    def resolve_checkpoint_storage_location(
        self, checkpoint_id: int, reference: CheckpointStorageLocationReference, /
    ) -> "FileSystemCheckpointStreamFactory":
        directory = self.directory.exclusive(checkpoint_id)
        prefix = decode_reference(reference) if reference.encoded else directory + "/"
        # A savepoint holds all its files itself.
        is_checkpoint = uripath.parent(prefix) == directory
        return self._factory(prefix, shared=self._shared(prefix) if is_checkpoint else prefix)

    def _shared(self, exclusive_prefix: str) -> str:
        """The prefix of shared files of an attempt, whose exclusive ones have that prefix."""
        return f"{self.directory.shared}/{uripath.name(exclusive_prefix)}"

    def _factory(self, exclusive: str, *, shared: str) -> "FileSystemCheckpointStreamFactory":
        return FileSystemCheckpointStreamFactory(
            exclusive_prefix=exclusive,
            shared_prefix=shared,
            committed_in=without_marker(uripath.parent(exclusive)),
            inline_threshold=self.storage.inline_threshold,
            write_buffer_bytes=self.storage.write_buffer_bytes,
        )


@dataclass(frozen=True, slots=True)
class FileSystemCheckpointStreamFactory:
    """Makes state streams whose files begin with a prefix, a URI; the marker in it spreads them.

    Attributes:
        exclusive_prefix: The prefix of state that belongs to one checkpoint.
        shared_prefix: The prefix of state that several may refer to.
        committed_in: The directory that will hold `_metadata`.
        inline_threshold: As in the storage.
        write_buffer_bytes: As in the storage.
    """

    exclusive_prefix: str
    shared_prefix: str
    committed_in: str
    inline_threshold: int
    write_buffer_bytes: int

    def create_checkpoint_state_output_stream(
        self, scope: CheckpointedStateScope, /
    ) -> FileSystemCheckpointStateOutputStream:
        exclusive = scope is CheckpointedStateScope.EXCLUSIVE
        prefix = self.exclusive_prefix if exclusive else self.shared_prefix
        return FileSystemCheckpointStateOutputStream(
            prefix,
            inline_threshold=self.inline_threshold,
            buffer_bytes=self.write_buffer_bytes,
            durable_name=uripath.parent(prefix) != self.committed_in,
        )


@dataclass(frozen=True, slots=True)
class _PendingDirectory:
    """A directory in which a checkpoint or savepoint is in the making."""

    directory: str
    factory: FileSystemCheckpointStreamFactory
    single_writer: bool
    publication: Publication = field(
        default_factory=Publication, init=False, repr=False, compare=False
    )

    @property
    def external_pointer(self) -> str:
        return self.directory

    @property
    def location_reference(self) -> CheckpointStorageLocationReference:
        return encode_reference(self.factory.exclusive_prefix)

    def create_checkpoint_state_output_stream(
        self, scope: CheckpointedStateScope, /
    ) -> FileSystemCheckpointStateOutputStream:
        return self.factory.create_checkpoint_state_output_stream(scope)

    def create_metadata_output_stream(self) -> FileSystemCheckpointMetadataOutputStream:
        return FileSystemCheckpointMetadataOutputStream(
            self.directory, single_writer=self.single_writer, publication=self.publication
        )

    def _may_be_completed(self) -> bool:
        """Whether the store may still complete the checkpoint, however long after this."""
        if self.publication.is_under_way:
            _log.warning(
                "%s may still be completed by the store; it is left alone, and swept later if not",
                self.directory,
            )
        return self.publication.is_under_way


@dataclass(frozen=True, slots=True)
class FileSystemCheckpointStorageLocation(_PendingDirectory):
    """A pending checkpoint: one attempt at filling a `chk-<N>` directory.

    The attempt is drawn anew each time a driver begins a checkpoint, so that one that fails can
    remove what it and its tasks wrote without touching what another driver wrote meanwhile. Shared files
    are removed only if nobody can ever have gone on from this checkpoint, and refer to them by now.
    """

    attempt: str

    def dispose_on_failure(self) -> None:
        if self._may_be_completed():
            return
        file_system = file_system_for(self.directory)
        entries = list(file_system.list(self.directory))
        for entry in entries:
            if uripath.name(entry.uri) == METADATA_FILE and self._is_committed(entry.uri):
                _log.warning(
                    "checkpoint %s was completed after all; it is left alone", self.directory
                )
                return
        directories = [uripath.parent(self.factory.exclusive_prefix)]
        if not self.publication.may_have_succeeded:
            directories.append(uripath.parent(self.factory.shared_prefix))
        everywhere = [place for directory in directories for place in spread_everywhere(directory)]
        entries += list_all([place for place in everywhere if place != self.directory])
        file_system.delete([entry.uri for entry in entries if self._is_ours(entry.uri)])
        abort_uploads(
            upload
            for common in dict.fromkeys(common_directory(directory) for directory in directories)
            for upload in pending_uploads(common)
            if self._is_ours(upload.uri) and uripath.parent(upload.uri) in everywhere
        )

    def _is_ours(self, uri: str) -> bool:
        # The second is the name of a file that is still being written.
        return uripath.name(uri).startswith((f"{self.attempt}-", f".{self.attempt}-"))

    def _is_committed(self, metadata: str) -> bool:
        """Whether the metadata that stands there names files of this attempt."""
        # Not decoded, because it may be anything; random digits are not there by chance.
        with file_system_for(metadata).open(metadata) as stream:
            return f"{self.attempt}-".encode() in stream.read()


@dataclass(frozen=True, slots=True)
class FileSystemSavepointStorageLocation(_PendingDirectory):
    """A pending savepoint: a directory that nobody else knows of."""

    def dispose_on_failure(self) -> None:
        if self._may_be_completed():
            return
        file_system = file_system_for(self.directory)
        if any(
            uripath.name(entry.uri) == METADATA_FILE for entry in file_system.list(self.directory)
        ):
            _log.warning("savepoint %s was completed after all; it is left alone", self.directory)
            return
        file_system.delete_tree(self.directory)
