"""Checkpoints in directories of a file system, the same over every store.

    <directory>/<job>/chk-<N>/_metadata      the commit marker, written last
    <directory>/<job>/chk-<N>/<attempt>-<…>  exclusive state files, of one attempt at checkpoint N
    <directory>/<job>/shared/<…>             state files that several checkpoints refer to
    <directory>/<job>/taskowned/             files that belong to tasks

The attempt is drawn anew each time a driver begins a checkpoint, so that one that fails can
remove what it and its tasks wrote without touching what another driver wrote meanwhile.
"""

import logging
import re
import uuid
from dataclasses import dataclass
from os import PathLike

from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.locations import _uris
from holdfast.locations._file_system import FileSystem, file_system_for
from holdfast.locations._file_system_completed import (
    FileSystemCompletedCheckpointStorageLocation,
    metadata_at,
)
from holdfast.locations._file_system_streams import (
    FileSystemCheckpointMetadataOutputStream,
    FileSystemCheckpointStateOutputStream,
)
from holdfast.locations._storage import (
    JOB_ID,
    METADATA_FILE,
    CheckpointedStateScope,
    CheckpointStorageLocationReference,
    check_checkpoint_id,
    check_job_id,
)

_log = logging.getLogger(__name__)

INLINE_THRESHOLD_BYTES = 20 << 10
MAX_INLINE_THRESHOLD_BYTES = 1 << 20
WRITE_BUFFER_BYTES = 64 << 10

_SHARED = "shared"
_TASK_OWNED = "taskowned"
_CHECKPOINT = re.compile(r"chk-(0|[1-9][0-9]*)")

# Tells our references from garbage; Flink uses the same four bytes before a path.
_REFERENCE_MAGIC = b"\x05\x5f\x3f\x18"


@dataclass(frozen=True, slots=True)
class FileSystemCheckpointStorage:
    """Checkpoints as directories with state files and a `_metadata` file.

    Args:
        directory: URI of the directory below which every job gets its own.
        inline_threshold: Most bytes of a state that travel in its handle instead of in a file;
            0 to 1 MiB.
        write_buffer_bytes: Bytes held back before they are written; at least the threshold
            takes effect.

    Raises:
        InvalidRequestError: The directory has no scheme or is a root, or a number is out of
            bounds.

    Source:
        Flink, FileSystemCheckpointStorage; its write buffer has 4 KiB.
    """

    directory: str
    inline_threshold: int = INLINE_THRESHOLD_BYTES
    write_buffer_bytes: int = WRITE_BUFFER_BYTES

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
        object.__setattr__(self, "directory", _uris.checkpoint_directory(self.directory))

    def create_checkpoint_storage(self, job_id: str, /) -> "FileSystemCheckpointStorageAccess":
        file_system_for(self.directory)
        return FileSystemCheckpointStorageAccess(self, check_job_id(job_id))

    def resolve_checkpoint(
        self, pointer: str | PathLike[str], /
    ) -> FileSystemCompletedCheckpointStorageLocation:
        return resolve_pointer(pointer)

    def jobs(self) -> list[str]:
        """Ids of the jobs that have a directory here, sorted."""
        entries = file_system_for(self.directory).list(self.directory)
        names = (_uris.name(entry.uri) for entry in entries if entry.is_directory)
        return sorted(name for name in names if JOB_ID.fullmatch(name))


@dataclass(frozen=True, slots=True)
class FileSystemCheckpointStorageAccess:
    """One job's part of a `FileSystemCheckpointStorage`."""

    storage: FileSystemCheckpointStorage
    job_id: str

    @property
    def directory(self) -> str:
        """URI of the job's directory."""
        return _uris.join(self.storage.directory, self.job_id)

    @property
    def supports_highly_available_storage(self) -> bool:
        return True

    def initialize_base_locations_for_checkpoint(self) -> None:
        for name in (_SHARED, _TASK_OWNED):
            self._file_system.prepare_directory(_uris.join(self.directory, name))

    def initialize_location_for_checkpoint(
        self, checkpoint_id: int, /
    ) -> "FileSystemCheckpointStorageLocation":
        directory = self._checkpoint_directory(checkpoint_id)
        self._file_system.prepare_directory(directory)
        return FileSystemCheckpointStorageLocation(self, directory, uuid.uuid4().hex[:8])

    def completed_checkpoints(self) -> dict[int, FileSystemCompletedCheckpointStorageLocation]:
        found = {}
        for entry in self._file_system.list(self.directory):
            matched = _CHECKPOINT.fullmatch(_uris.name(entry.uri))
            if matched is None or not entry.is_directory:
                continue
            for file in self._file_system.list(entry.uri):
                if _uris.name(file.uri) == METADATA_FILE:
                    found[int(matched[1])] = metadata_at(file.uri, file.size)
        return dict(sorted(found.items()))

    def resolve_checkpoint(self, pointer: str, /) -> FileSystemCompletedCheckpointStorageLocation:
        return resolve_pointer(pointer)

    def resolve_checkpoint_storage_location(
        self, checkpoint_id: int, reference: CheckpointStorageLocationReference, /
    ) -> "FileSystemCheckpointStreamFactory":
        directory = self._checkpoint_directory(checkpoint_id)
        prefix = _decode(reference) if reference.encoded else directory + "/"
        return self.stream_factory(prefix)

    def stream_factory(self, exclusive_prefix: str) -> "FileSystemCheckpointStreamFactory":
        """Makes streams whose exclusive files begin with the prefix, a URI."""
        return FileSystemCheckpointStreamFactory(
            exclusive_prefix=exclusive_prefix,
            shared_prefix=_uris.join(self.directory, _SHARED) + "/",
            inline_threshold=self.storage.inline_threshold,
            write_buffer_bytes=self.storage.write_buffer_bytes,
        )

    def _checkpoint_directory(self, checkpoint_id: int) -> str:
        check_checkpoint_id(checkpoint_id)
        return _uris.join(self.directory, f"chk-{checkpoint_id}")

    @property
    def _file_system(self) -> FileSystem:
        return file_system_for(self.directory)


@dataclass(frozen=True, slots=True)
class FileSystemCheckpointStreamFactory:
    """Makes state streams whose files begin with a prefix."""

    exclusive_prefix: str
    shared_prefix: str
    inline_threshold: int
    write_buffer_bytes: int

    def create_checkpoint_state_output_stream(
        self, scope: CheckpointedStateScope, /
    ) -> FileSystemCheckpointStateOutputStream:
        exclusive = scope is CheckpointedStateScope.EXCLUSIVE
        return FileSystemCheckpointStateOutputStream(
            self.exclusive_prefix if exclusive else self.shared_prefix,
            inline_threshold=self.inline_threshold,
            buffer_bytes=self.write_buffer_bytes,
        )


@dataclass(frozen=True, slots=True)
class FileSystemCheckpointStorageLocation:
    """A pending checkpoint: one attempt at filling a `chk-<N>` directory."""

    access: FileSystemCheckpointStorageAccess
    directory: str
    attempt: str

    @property
    def external_pointer(self) -> str:
        return self.directory

    @property
    def location_reference(self) -> CheckpointStorageLocationReference:
        return CheckpointStorageLocationReference(_REFERENCE_MAGIC + self._prefix.encode())

    def create_checkpoint_state_output_stream(
        self, scope: CheckpointedStateScope, /
    ) -> FileSystemCheckpointStateOutputStream:
        factory = self.access.stream_factory(self._prefix)
        return factory.create_checkpoint_state_output_stream(scope)

    def create_metadata_output_stream(self) -> FileSystemCheckpointMetadataOutputStream:
        return FileSystemCheckpointMetadataOutputStream(_uris.join(self.directory, METADATA_FILE))

    def dispose_on_failure(self) -> None:
        file_system = file_system_for(self.directory)
        ours = (f"{self.attempt}-", f".{self.attempt}-")  # the second: still being written
        entries = {_uris.name(entry.uri): entry for entry in file_system.list(self.directory)}
        if METADATA_FILE in entries and self._is_committed(entries[METADATA_FILE].uri):
            _log.warning("checkpoint %s was completed after all; it is left alone", self.directory)
            return
        file_system.delete([entry.uri for name, entry in entries.items() if name.startswith(ours)])
        file_system.delete_empty_directory(self.directory)

    def _is_committed(self, metadata: str) -> bool:
        """Whether the metadata that stands there names files of this attempt."""
        with file_system_for(metadata).open(metadata) as stream:
            return f"{self.attempt}-".encode() in stream.read()

    @property
    def _prefix(self) -> str:
        return _uris.join(self.directory, f"{self.attempt}-")


def resolve_pointer(
    pointer: str | PathLike[str],
) -> FileSystemCompletedCheckpointStorageLocation:
    """Find a checkpoint by its directory or its metadata file.

    Raises:
        CheckpointNotFoundError: Nothing is there, or a directory without `_metadata`.
        InvalidRequestError: The pointer is no usable URI.
    """
    uri = _uris.checkpoint_directory(pointer)
    file_system = file_system_for(uri)
    parent = {entry.uri: entry for entry in file_system.list(_uris.parent(uri))}
    if uri in parent and not parent[uri].is_directory:
        return metadata_at(uri, parent[uri].size)
    for entry in file_system.list(uri):
        if _uris.name(entry.uri) == METADATA_FILE:
            return metadata_at(entry.uri, entry.size)
    if uri in parent:
        message = f"directory has no {METADATA_FILE}; point at a metadata file to use another name"
        raise CheckpointNotFoundError(message, uri)
    raise CheckpointNotFoundError("no such checkpoint or savepoint", uri)


def _decode(reference: CheckpointStorageLocationReference) -> str:
    encoded = reference.encoded
    if not encoded.startswith(_REFERENCE_MAGIC) or len(encoded) == len(_REFERENCE_MAGIC):
        raise InvalidRequestError(f"not a location reference: {encoded[:64].hex()}")
    try:
        return encoded.removeprefix(_REFERENCE_MAGIC).decode()
    except UnicodeDecodeError as error:
        message = f"location reference is no valid path: {encoded[:64].hex()}"
        raise InvalidRequestError(message) from error
