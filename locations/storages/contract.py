"""The contracts of checkpoint storage: who calls what, and in which order.

    storage   = checkpoint_storage("file:///data/holdfast")     anywhere; only settings, pickles
    access    = storage.create_checkpoint_storage("job-1")      driver and tasks
    driver    access.initialize_base_locations_for_checkpoint() once, first
    driver    ownership = access.claim_job()                    from here on older drivers lose
    driver    location = access.initialize_location_for_checkpoint(7)
    task      factory = access.resolve_checkpoint_storage_location(7, location.location_reference)
    task      stream = factory.create_checkpoint_state_output_stream(scope)
    task      stream.write(...); handle = stream.close_and_get_handle()
    driver    stream = location.create_metadata_output_stream()
    driver    stream.write(...); completed = stream.close_and_finalize_checkpoint()
    driver    ownership.check()                                 still the owner?
    driver    or, if any of it failed: location.dispose_on_failure()

A stream or location belongs to its writer until its one success call. `close()` before that
call discards, after it does nothing; leaving a `with` block counts as `close()`.

Source:
    Flink, org.apache.flink.runtime.state: CheckpointStorage, CheckpointStorageAccess and the
    interfaces around them; names and roles are theirs.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

import msgspec

from holdfast.common import uripath
from holdfast.errors import InvalidRequestError
from holdfast.locations.file_systems import BytesLike, file_system_for
from holdfast.locations.handles import Checksum, FileStateHandle, StreamStateHandle, is_inside
from holdfast.locations.metadata import CheckpointMetadata
from holdfast.locations.storages.entropy import MARKER, lies_in

METADATA_FILE = "_metadata"

CHECKPOINT = re.compile(r"chk-(0|[1-9][0-9]*)")
JOB_ID = re.compile(rf"(?!{MARKER}\Z)[A-Za-z0-9_-][A-Za-z0-9._-]{{0,127}}")
"""The form of a job id: it names a directory in every store, and is no marker."""

STATE_FILE = re.compile(r"(?:[0-9a-f]{8}-)?[0-9a-f]{32}")
"""The form of a state file's name: the digits of the attempt that wrote it, if any, and random ones."""

SHARED = "shared"

SAVEPOINT_NAME = re.compile(rf"savepoint-(?P<job>{JOB_ID.pattern})-[0-9a-f]{{12}}")


class CheckpointedStateScope(Enum):
    """Who may refer to a piece of state: one checkpoint, or several."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


class CheckpointStorageLocationReference(msgspec.Struct, frozen=True):
    """The reference that the driver sends to tasks, so that they find the location that it made.

    Attributes:
        encoded: Opaque bytes; empty for the default reference, which tasks resolve by themselves.
    """

    encoded: bytes = b""


class OwnedOutputStream(Protocol):
    """A stream that belongs to its writer until its one success call, which the kinds name.

    One thread writes; another one may `close`.
    """

    def write(self, data: BytesLike, /) -> int:
        """Append the bytes and return their number. Raises `StorageUnavailableError`."""
        ...

    def close(self) -> None:
        """Discard, unless the success call was made. May be called twice, and never raises."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


class CheckpointStateOutputStream(OwnedOutputStream, Protocol):
    """One blob of state in the making."""

    def tell(self) -> int:
        """Number of bytes written so far."""
        ...

    def flush(self) -> None:
        """Send buffered bytes to the store, unless they may still travel in the handle."""
        ...

    def flush_to_file(self) -> None:
        """Send buffered bytes to the store, however few; memory has no files."""
        ...

    def sync(self) -> None:
        """Make the bytes that the store has durable, as far as it can before the success call."""
        ...

    def close_and_get_handle(self) -> StreamStateHandle | None:
        """Finish the stream and return its handle; None if nothing was written. The stream's one success call.

        Raises `StreamClosedError` when called again or after `close`, `StorageUnavailableError`
        after which nothing is left behind.
        """
        ...


@runtime_checkable
class AdoptingOutputStream(CheckpointStateOutputStream, Protocol):
    """A stream that needs no copy of bytes that are in a file of this machine already."""

    def adopt(self, path: str, size: int, checksum: Checksum, /) -> bool:
        """Let a file, which nobody changes any more, be what is written; it has its own name for it from now on.

        Args:
            path: The file.
            size: The file's length in bytes.
            checksum: The checksum of the file's bytes.

        Returns:
            Whether that was possible. If not, nothing was done. Nothing may be written before or after.
        """
        ...


class CompletedCheckpointStorageLocation(Protocol):
    """A finished checkpoint's place. Holds settings only; pickles."""

    @property
    def external_pointer(self) -> str:
        """Text by which `resolve_checkpoint` finds the checkpoint again."""
        ...

    @property
    def metadata_handle(self) -> StreamStateHandle:
        """The handle that leads to the metadata."""
        ...

    def dispose_storage_location(self) -> None:
        """Delete the checkpoint, the metadata first; a missing one counts as deleted.

        State files in other places, which only the metadata leads to, stay; so do those beside it in a
        directory whose name says nothing of a checkpoint or savepoint, which may hold anything.
        """
        ...


@dataclass(frozen=True, slots=True)
class CompletedCheckpoint:
    """A checkpoint or savepoint that exists: what it holds, and where it is.

    Attributes:
        metadata: The content of `_metadata`.
        location: Where it stands.
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
        """Delete the checkpoint, the metadata first. What it shares with others is not touched."""
        self.location.dispose_storage_location()
        directory = self.location.external_pointer
        is_deleted = holds_nothing_else(directory)
        left = [
            stream.uri
            for stream in self.metadata.streams()
            if isinstance(stream, FileStateHandle)
            and lies_in(stream.uri, directory)
            and not (is_deleted and is_inside(stream, directory))
        ]
        if left:
            file_system_for(directory).delete(left)
        if left and not is_deleted:
            file_system_for(directory).delete_empty_directory(directory)


class CheckpointMetadataOutputStream(OwnedOutputStream, Protocol):
    """The metadata in the making: the checkpoint exists once it is finalized, and not before."""

    def close_and_finalize_checkpoint(self) -> CompletedCheckpointStorageLocation:
        """Publish the metadata, empty or not. The stream's one success call.

        Raises `CheckpointConflictError` if the checkpoint exists already, `OutcomeUnknownError`,
        `StorageUnavailableError`, and `StreamClosedError` when called again or after `close`.
        """
        ...


class CheckpointStreamFactory(Protocol):
    """Makes state streams at one location; for tasks. Holds settings only; pickles."""

    def create_checkpoint_state_output_stream(
        self, scope: CheckpointedStateScope, /
    ) -> CheckpointStateOutputStream:
        """A new stream. Creates no directory, and no file before it has to."""
        ...


class CheckpointStorageLocation(CheckpointStreamFactory, Protocol):
    """A pending checkpoint's place; for the driver."""

    @property
    def external_pointer(self) -> str:
        """Text by which `resolve_checkpoint` will find the checkpoint once it is completed."""
        ...

    @property
    def location_reference(self) -> CheckpointStorageLocationReference:
        """The reference by which tasks find this location."""
        ...

    def create_metadata_output_stream(self) -> CheckpointMetadataOutputStream:
        """The stream whose success call completes the checkpoint."""
        ...

    def dispose_on_failure(self) -> None:
        """Delete the files that the driver and tasks have written through this location for it alone.

        The directory of a checkpoint stays, because another driver may be about to write into it; so does
        shared state, if the checkpoint can have been there for a moment: another driver may have gone on
        from it. Nothing is deleted if publishing the metadata was interrupted, or its outcome is unknown:
        the store may still complete it.
        """
        ...


class JobOwnership(Protocol):
    """One driver's claim to a job: good until another driver claims the job."""

    @property
    def epoch(self) -> int:
        """Number of the claim; each is higher than all before it."""
        ...

    @property
    def completed(self) -> Mapping[int, CompletedCheckpoint]:
        """The job's completed checkpoints when it was claimed, by id, oldest first.

        The owner goes on from these. One that a former owner completes later meets it at its name.
        """
        ...

    def check(self) -> None:
        """Raises `CheckpointConflictError` if another driver has claimed the job since."""
        ...

    def is_past(self, checkpoint_id: int, commit_token: str, /) -> bool:
        """Whether the job has gone on beyond a checkpoint that its owner never knew of.

        The token tells it from another one of that number, which the owner knew and deleted.
        """
        ...

    def has_ended_before(self, checkpoint_id: int, commit_token: str, /) -> bool:
        """Whether another job has the newest checkpoint that the owner knew of, and this one came later."""
        ...


class CheckpointStorageCoordinatorView(Protocol):
    """The driver's view of a job's storage."""

    def initialize_base_locations_for_checkpoint(self) -> None:
        """Make the directories that all checkpoints of the job need. May be repeated.

        Raises `InvalidRequestError` if the store can't keep two drivers apart, and nobody has
        declared that there is only one.
        """
        ...

    def claim_job(self) -> JobOwnership:
        """Become the job's owner; the one before learns it at its next commit."""
        ...

    def initialize_location_for_checkpoint(
        self, checkpoint_id: int, /
    ) -> CheckpointStorageLocation:
        """Begin a checkpoint. Raises `InvalidRequestError` for a negative id."""
        ...

    def initialize_location_for_savepoint(
        self, checkpoint_id: int, /, target: str | os.PathLike[str] | None = None
    ) -> CheckpointStorageLocation:
        """Begin a savepoint: a directory of its own below `target`, or the default place.

        Raises `InvalidRequestError` if there is neither.
        """
        ...

    def completed_checkpoints(self) -> Mapping[int, CompletedCheckpointStorageLocation]:
        """The job's completed checkpoints by id, oldest first, without savepoints."""
        ...

    def resolve_checkpoint(self, pointer: str, /) -> CompletedCheckpointStorageLocation:
        """Find a checkpoint of any job. Raises `CheckpointNotFoundError`."""
        ...


class CheckpointStorageWorkerView(Protocol):
    """The view that tasks have of a job's storage. They create, stat and list no directories."""

    def resolve_checkpoint_storage_location(
        self, checkpoint_id: int, reference: CheckpointStorageLocationReference, /
    ) -> CheckpointStreamFactory:
        """Where to write the state of a checkpoint. Raises `InvalidRequestError`.

        Files that are written by the default reference belong to no attempt that could dispose of them.
        """
        ...


class CheckpointStorageAccess(
    CheckpointStorageCoordinatorView, CheckpointStorageWorkerView, Protocol
):
    """A job's storage, for driver and tasks."""


class CheckpointStorage(Protocol):
    """Where checkpoints go: settings only; pickles, and may be shared between threads."""

    def create_checkpoint_storage(self, job_id: str, /) -> CheckpointStorageAccess:
        """The storage of one job. Touches nothing yet."""
        ...

    def resolve_checkpoint(
        self, pointer: str | os.PathLike[str], /
    ) -> CompletedCheckpointStorageLocation:
        """Find a checkpoint of any job by its directory or its metadata file.

        Raises `CheckpointNotFoundError`, `InvalidRequestError`.
        """
        ...


def holds_nothing_else(directory: str) -> bool:
    """Whether a directory with `_metadata` in it was made for that, so that it can go as a whole.

    A copied checkpoint may lie beside jobs, or anything else.
    """
    name = uripath.name(directory)
    return CHECKPOINT.fullmatch(name) is not None or SAVEPOINT_NAME.fullmatch(name) is not None


def check_checkpoint_id(checkpoint_id: int) -> None:
    """Refuse a negative id.

    Raises:
        InvalidRequestError: The id is negative.
    """
    if type(checkpoint_id) is not int:
        raise InvalidRequestError(f"checkpoint id {checkpoint_id!r} is no whole number")
    if checkpoint_id < 0:
        raise InvalidRequestError(f"checkpoint id {checkpoint_id} is negative")


def check_job_id(job_id: str) -> str:
    """Refuse an id that can't be the name of a directory in every store.

    Raises:
        InvalidRequestError: Not 1 to 128 letters, digits, `.`, `_` or `-`, or it begins with `.`,
            or is the marker of state files that are spread.
    """
    if not JOB_ID.fullmatch(job_id):
        message = (
            f"job id {job_id!r} can't name a directory; "
            "use 1 to 128 letters, digits, '.', '_' or '-', and no '.' at the beginning, nor "
            f"{MARKER!r}"
        )
        raise InvalidRequestError(message)
    return job_id
