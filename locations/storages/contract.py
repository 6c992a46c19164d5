"""The contract of checkpoint storage: the order of calls, and who makes each.

    storage   = checkpoint_storage("file:///data/holdfast")     anywhere; holds settings only, pickles
    access    = storage.create_checkpoint_storage("job-1")      driver and tasks
    driver    access.initialize_base_locations_for_checkpoint() once, first
    driver    ownership = access.claim_job()                    from now on commits of older drivers fail
    driver    location = access.initialize_location_for_checkpoint(7)
    task      factory = access.resolve_checkpoint_storage_location(7, location.location_reference)
    task      stream = factory.create_checkpoint_state_output_stream(scope)
    task      stream.write(...); handle = stream.close_and_get_handle()
    driver    stream = location.create_metadata_output_stream()
    driver    stream.write(...); completed = stream.close_and_finalize_checkpoint()
    driver    ownership.check()                                 still the owner?
    driver    or, if any of it failed: location.dispose_on_failure()

Source:
    Flink, org.apache.flink.runtime.state: CheckpointStorage, CheckpointStorageAccess and the
    interfaces around them; names and roles are theirs.
"""

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import BinaryIO, Protocol, Self

import msgspec

from holdfast.common import chunks, raise_if_cancelled
from holdfast.locations.checksums import Checksum
from holdfast.locations.file_systems import BytesLike, file_system_for
from holdfast.locations.handles import FileStateHandle, StreamStateHandle, files_of, is_inside
from holdfast.locations.metadata import CheckpointMetadata
from holdfast.locations.storages.layout import is_dedicated, is_file_of


class CheckpointedStateScope(Enum):
    """The checkpoints that may refer to a stream of state: one, or several."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


class CheckpointStorageLocationReference(msgspec.Struct, frozen=True):
    """A reference to a pending location, which the driver sends to tasks.

    Attributes:
        encoded: Opaque bytes; empty for the default reference, which tasks resolve by themselves.
    """

    encoded: bytes = b""


class DiscardingStream(ABC):
    """An output stream that discards its bytes unless its one success call was made.

    One thread writes; another one may `close`. Leaving a `with` block is a `close`. A stream that is garbage collected
    while it is open is discarded with a warning.
    """

    _finished = False
    """True once the success call or `close` was made: nothing more can be written."""

    @abstractmethod
    def write(self, data: BytesLike, /) -> int:
        """Append the bytes and return their number. Raises `StorageUnavailableError`."""

    @abstractmethod
    def close(self) -> None:
        """Discard, unless the success call was made; set `_finished`. May be called twice, and never raises."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._finished:
            self.close()  # first: where warnings are errors, the next line is the last
            warnings.warn(f"{self!r} was neither kept nor closed", ResourceWarning, stacklevel=2)


class CheckpointStateOutputStream(DiscardingStream):
    """A stream of state in progress; its success call is `close_and_get_handle`."""

    @abstractmethod
    def tell(self) -> int:
        """Return the number of bytes written so far."""

    @abstractmethod
    def flush(self) -> None:
        """Send buffered bytes to the store, unless there are so few that the handle can have them."""

    @abstractmethod
    def flush_to_file(self) -> None:
        """Send buffered bytes to the store, however few; memory has no files."""

    @abstractmethod
    def sync(self) -> None:
        """Make the bytes that the store has durable, as far as it can before the success call."""

    @abstractmethod
    def close_and_get_handle(self) -> StreamStateHandle | None:
        """Finish the stream and return its handle; None if nothing was written.

        Raises `StreamClosedError` when called again or after `close`, `StorageUnavailableError`
        after which no file remains.
        """

    def adopt(self, _path: str, _size: int, _checksum: Checksum, /) -> bool:
        """Give an immutable file of this machine a second name as the stream's content, instead of copying it.

        Nothing may be written before or after.

        Returns:
            Whether the store could do that. If not, nothing was done, and the bytes have to be written.
        """
        return False

    def adopt_stored(self, _source: FileStateHandle, /) -> bool:
        """Have the store copy a file as the stream's content, so that its bytes are not moved through this host.

        Nothing may be written before or after. The bytes are not verified: the new handle has the source's checksum.

        Returns:
            Whether the store could do that. If not, nothing was done, and the bytes have to be written.
        """
        return False


def copy_bytes(
    source: BinaryIO,
    target: CheckpointStateOutputStream,
    *,
    on_bytes: Callable[[int], object] = lambda _: None,
) -> None:
    """Write the rest of a stream to another one; `on_bytes` is called with the number of bytes of each step."""
    for chunk in chunks(source):
        raise_if_cancelled()
        target.write(chunk)
        on_bytes(len(chunk))


class CheckpointMetadataOutputStream(DiscardingStream):
    """Metadata in progress: the checkpoint exists once the success call has returned, and not before."""

    @abstractmethod
    def close_and_finalize_checkpoint(self) -> "CompletedCheckpointStorageLocation":
        """Publish the metadata, empty or not.

        Raises `CheckpointConflictError` if the checkpoint exists already, `OutcomeUnknownError`,
        `StorageUnavailableError`, and `StreamClosedError` when called again or after `close`.
        """


class CompletedCheckpointStorageLocation(Protocol):
    """The location of a completed checkpoint. Holds settings only; pickles."""

    @property
    def external_pointer(self) -> str:
        """Text that `resolve_pointer` resolves to the checkpoint: the URI of its directory."""
        ...

    @property
    def metadata_handle(self) -> StreamStateHandle:
        """The handle to the metadata."""
        ...

    def dispose_storage_location(self) -> None:
        """Delete the checkpoint, the metadata first; a missing one counts as deleted.

        State files in other directories stay. So do the other files of a directory that was not created for one
        checkpoint or savepoint.
        """
        ...


@dataclass(frozen=True, slots=True)
class CompletedCheckpoint:
    """A checkpoint or savepoint that exists: its content and its location.

    Attributes:
        metadata: The content of `_metadata`.
        location: Its location.
        metadata_bytes: Length of `_metadata`.
    """

    metadata: CheckpointMetadata
    location: CompletedCheckpointStorageLocation
    metadata_bytes: int

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint's number."""
        return self.metadata.checkpoint_id

    def discard(self) -> None:
        """Delete the checkpoint, the metadata first. Files that it shares with others stay."""
        self.location.dispose_storage_location()
        directory = self.location.external_pointer
        is_deleted = is_dedicated(directory)
        left = [
            file.uri
            for file in files_of(self.metadata.streams())
            if is_file_of(file.uri, directory) and not (is_deleted and is_inside(file, directory))
        ]
        if left:
            file_system_for(directory).delete(left)
        if left and not is_deleted:
            file_system_for(directory).delete_empty_directory(directory)


class CheckpointStreamFactory(Protocol):
    """Creates state streams at one location; for tasks. Holds settings only; pickles."""

    @property
    def inline_threshold(self) -> int:
        """Maximum number of bytes of a state that is in its handle instead of a file."""
        ...

    def create_checkpoint_state_output_stream(
        self, scope: CheckpointedStateScope, /
    ) -> CheckpointStateOutputStream:
        """Open a new stream. Creates no directory, and a file only once it is needed."""
        ...


class CheckpointStorageLocation(CheckpointStreamFactory, Protocol):
    """The location of a pending checkpoint; for the driver."""

    @property
    def external_pointer(self) -> str:
        """The pointer of the checkpoint once it is completed."""
        ...

    @property
    def location_reference(self) -> CheckpointStorageLocationReference:
        """The reference to this location, for tasks."""
        ...

    def create_metadata_output_stream(self) -> CheckpointMetadataOutputStream:
        """Open the stream whose success call completes the checkpoint."""
        ...

    def dispose_on_failure(self) -> None:
        """Delete the exclusive files that the driver and tasks have written through this location.

        The directory of a checkpoint stays, because another driver may be about to write into it. Shared state stays if
        the checkpoint may have existed for a moment, because another driver may have resumed from it. Nothing is
        deleted if publishing the metadata was interrupted, or its outcome is unknown: the store may still complete it.
        """
        ...


class JobOwnership(Protocol):
    """A driver's claim to a job, valid until another driver claims the job."""

    @property
    def epoch(self) -> int:
        """Number of the claim, higher than all earlier ones."""
        ...

    @property
    def completed(self) -> Mapping[int, CompletedCheckpoint]:
        """The job's completed checkpoints when it was claimed, by id, oldest first.

        The owner resumes from these. A later one of a former owner is a conflict with the owner's own one.
        """
        ...

    @property
    def has_readers(self) -> bool:
        """True if a reader may have held one of the job's checkpoints when `check` was called last."""
        ...

    def check(self) -> None:
        """Raise `CheckpointConflictError` if another driver has claimed the job since."""
        ...

    def is_superseded(self, checkpoint_id: int, commit_token: str, /) -> bool:
        """Return whether the job has newer checkpoints than one that its owner never knew.

        The token distinguishes it from another one of that number, which the owner knew and deleted.
        """
        ...

    def ended_before(self, checkpoint_id: int, commit_token: str, /) -> bool:
        """Return whether the job had ended, because another job claimed its newest checkpoint, before this one."""
        ...


class CheckpointStorageAccess(Protocol):
    """A job's storage, for the driver; tasks only call `resolve_checkpoint_storage_location`."""

    def initialize_base_locations_for_checkpoint(self) -> None:
        """Create the directories that all checkpoints of the job need. May be repeated.

        Raises `InvalidRequestError` if the store can't keep two drivers apart and a single writer was not promised.
        """
        ...

    def claim_job(self) -> JobOwnership:
        """Become the job's owner; the former owner learns it at its next commit."""
        ...

    def initialize_location_for_checkpoint(
        self, checkpoint_id: int, /
    ) -> CheckpointStorageLocation:
        """Begin a checkpoint. Raises `InvalidRequestError` for a negative id."""
        ...

    def initialize_location_for_savepoint(
        self, checkpoint_id: int, /, target: str | os.PathLike[str] | None = None
    ) -> CheckpointStorageLocation:
        """Begin a savepoint in a new directory below `target`, or below the default directory.

        Raises `InvalidRequestError` if there is neither.
        """
        ...

    def completed_checkpoints(self) -> Mapping[int, CompletedCheckpointStorageLocation]:
        """Return the job's completed checkpoints by id, oldest first, without savepoints."""
        ...

    def resolve_checkpoint_storage_location(
        self, checkpoint_id: int, reference: CheckpointStorageLocationReference, /
    ) -> CheckpointStreamFactory:
        """Return the factory of a checkpoint's state streams. Creates, reads and lists no directory.

        Files written by the default reference belong to no attempt that could dispose of them.

        Raises `InvalidRequestError`.
        """
        ...


class CheckpointStorage(Protocol):
    """A place for checkpoints. Holds settings only; pickles, and may be shared between threads."""

    def create_checkpoint_storage(self, job_id: str, /) -> CheckpointStorageAccess:
        """Return the storage of one job. Does no I/O."""
        ...
