"""A job's directory, which `layout` draws, its owner, and directories of savepoints.

A job's owner has a numbered epoch; only the highest one counts.

    <job>/_epoch/<n>    a JSON object, published once: epoch, owner, claimed_ms, completed, ends

A driver that starts publishes the next number. A driver that was thought dead finds that number when it looks next:
before it begins a checkpoint, and right after it has committed one. A checkpoint that it commits in between is either the
one that the job resumes from, because both write the same `_metadata`, or it has an id that the job has passed; then it
is revoked. The same holds if the newest epoch ends the job.

Source:
    SlateDB's writer epochs, and its boundary that writers check after they created a file.
"""

import logging
import random
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike

import msgspec

from holdfast.common import SYSTEM_CLOCK, json_decoder, uripath
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointCorruptedError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    StorageUnavailableError,
)
from holdfast.locations.file_systems import (
    PROBE_PREFIX,
    FileStatus,
    check_exclusive,
    file_system_for,
    publish,
)
from holdfast.locations.storages.completed import (
    FileSystemCompletedCheckpointStorageLocation,
    load_checkpoint,
)
from holdfast.locations.storages.contract import CompletedCheckpoint
from holdfast.locations.storages.layout import (
    CHECKPOINT,
    EPOCHS,
    LEASE,
    LEAVE_OUT,
    METADATA_FILE,
    SAVEPOINT_NAME,
    SHARED,
    check_checkpoint_id,
    check_job_id,
    check_marker,
    entropy_paths,
    has_marker,
    refuse_marker,
    without_marker,
)

_log = logging.getLogger(__name__)

_MAX_ATTEMPTS = 100

_MAX_WAIT_S = 0.02

_NUMBER = re.compile(r"[1-9][0-9]*")


class EpochRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of an epoch's file.

    Attributes:
        epoch: The epoch's number, 1 or more.
        owner: Random, so that a driver recognises its own epoch.
        claimed_ms: Time of the claim by the driver's clock, milliseconds since 1970 UTC.
        completed: Commit tokens of the job's completed checkpoints at that time, by id.
        ends: Whether the owner completes no checkpoint, because another job has claimed the newest one.
    """

    epoch: int
    owner: str
    claimed_ms: int
    completed: dict[int, str]
    ends: bool = False


_DECODER = json_decoder(EpochRecord)


@dataclass(frozen=True, slots=True)
class JobDirectory:
    """The directory of one job.

    Attributes:
        state_uri: The normalized URI for state files, with the marker if they get random characters.
        single_writer: Whether the user promises that one driver at a time runs the job.
    """

    state_uri: str
    single_writer: bool

    @classmethod
    def below(cls, directory: str, job_id: str, *, single_writer: bool) -> "JobDirectory":
        """Return the directory of a job in a normalized checkpoint directory. Raises `InvalidRequestError`."""
        return cls(uripath.join(check_marker(directory), check_job_id(job_id)), single_writer)

    @property
    def uri(self) -> str:
        """The URI of the directory for files other than state files."""
        return without_marker(self.state_uri)

    @property
    def shared(self) -> str:
        """The directory of files that several checkpoints refer to."""
        return uripath.join(self.state_uri, SHARED)

    def checkpoint(self, checkpoint_id: int) -> str:
        """Return the directory of a checkpoint. Raises `InvalidRequestError` for a negative id."""
        return without_marker(self.exclusive(checkpoint_id))

    def exclusive(self, checkpoint_id: int) -> str:
        """Return the directory of files that one checkpoint refers to. Raises as `checkpoint` does."""
        check_checkpoint_id(checkpoint_id)
        return uripath.join(self.state_uri, f"chk-{checkpoint_id}")

    def prepare(self) -> None:
        """Create the directories that all checkpoints need, and probe the store. May be repeated."""
        if has_marker(self.state_uri):
            self._check_partitions()
        for name in (SHARED, EPOCHS):
            file_system_for(self.uri).prepare_directory(uripath.join(self.uri, name))
        if not self.single_writer:
            check_exclusive(self.uri)

    def _check_partitions(self) -> None:
        """Refuse a store with directories: the 256 directories of state files are never created or deleted."""
        directory = entropy_paths(self.state_uri)[0]
        probe = uripath.join(directory, f"{PROBE_PREFIX}{uuid.uuid4().hex}")
        try:
            file_system_for(probe).create(probe).abort()
        except CheckpointNotFoundError as error:
            message = f"this store has directories, and does not partition by prefix; {LEAVE_OUT}"
            raise InvalidRequestError(message, self.state_uri, kind="location") from error

    def claim(self, *, ends: bool = False) -> "DirectoryOwnership":
        """Publish the next epoch and become the job's owner.

        With `ends` no checkpoint of the job will follow. An epoch that ends the job is published right after the owner's
        first one, so that it lists every checkpoint that a former owner may have resumed from.

        Raises:
            CheckpointConflictError: Other drivers keep claiming the job at the same time.
            CheckpointCorruptedError: A completed checkpoint can't be read.
        """
        for _ in range(_MAX_ATTEMPTS):
            locations = self.completed_checkpoints()
            try:
                completed = {number: load_checkpoint(locations[number]) for number in locations}
            except CheckpointNotFoundError:
                continue  # deleted by the former owner, which is still running
            record = EpochRecord(
                epoch=self.newest_epoch() + 1,
                owner=uuid.uuid4().hex,
                claimed_ms=SYSTEM_CLOCK.now_ms(),
                completed={number: completed[number].metadata.commit_token for number in completed},
            )
            if not self._publish(record):
                continue  # another driver was first; try a higher epoch
            # Before it was published, another driver may have committed, or published a higher one.
            if self.newest_epoch() == record.epoch and self.completed_checkpoints() == locations:
                if ends:
                    record = msgspec.structs.replace(record, epoch=record.epoch + 1, ends=True)
                    if not self._publish(record):
                        continue
                self._delete_epochs_before(record.epoch)
                return DirectoryOwnership(self, record, completed)
            SYSTEM_CLOCK.sleep(random.uniform(0, _MAX_WAIT_S))  # noqa: S311  # no secret
        message = (
            f"this driver could not claim the job in {_MAX_ATTEMPTS} attempts: another driver keeps claiming it or "
            "committing checkpoints; stop that driver, then start the query again"
        )
        raise CheckpointConflictError(message, self.uri, kind="contended")

    def newest_epoch(self) -> int:
        """Return the epoch that counts; 0 if the job was never claimed."""
        return epoch_of(self.newest_epoch_status().uri)

    def newest_epoch_status(self) -> FileStatus:
        """Return the file of the epoch that counts, or the directory of epochs if there is no file."""
        return _newest(self.epoch_entries())

    def epoch_entries(self) -> list[FileStatus]:
        """Return the directory of epochs, and its entries: epochs, and leases of readers."""
        epochs = uripath.join(self.uri, EPOCHS)
        listed = file_system_for(epochs).list(epochs)
        return [FileStatus(epochs, 0, 0, is_directory=True), *listed]

    def newest_epoch_record(self) -> EpochRecord:
        """Return the content of the file of the epoch that counts."""
        for _ in range(_MAX_ATTEMPTS):
            uri = uripath.join(self.uri, EPOCHS, str(self.newest_epoch()))
            try:
                with file_system_for(uri).open(uri) as stream:
                    return _DECODER.decode(stream.read())
            except CheckpointNotFoundError:
                continue  # a newer one was published, and this one deleted
            except msgspec.MsgspecError as error:
                message = f"claim to the job can't be read ({error})"
                raise CheckpointCorruptedError(message, uri) from error
        message = (
            "claims to this job disappear between listing and reading: another process is deleting the job's "
            "directory"
        )
        raise CheckpointNotFoundError(message, self.uri)

    def _publish(self, record: EpochRecord) -> bool:
        """Publish an epoch; returns whether it is this driver's, and not another one's."""
        uri = uripath.join(self.uri, EPOCHS, str(record.epoch))
        try:
            publish(uri, msgspec.json.encode(record), single_writer=self.single_writer)
        except CheckpointConflictError:
            return False
        return True

    def _delete_epochs_before(self, epoch: int) -> None:
        """Delete older epochs; the newest one stays, so that numbers only increase."""
        try:
            epochs = uripath.join(self.uri, EPOCHS)
            uris = [status.uri for status in file_system_for(epochs).list(epochs)]
            file_system_for(epochs).delete(uri for uri in uris if 0 < epoch_of(uri) < epoch)
        except CheckpointError:
            _log.warning("could not delete older epochs of a job", exc_info=True)

    def completed_checkpoints(self) -> dict[int, FileSystemCompletedCheckpointStorageLocation]:
        """Return the checkpoints with a `_metadata` file by id, oldest first; the newest is never missed.

        Raises:
            StorageUnavailableError: The job completes and deletes them faster than they are listed.
        """
        # A running job completes checkpoints and deletes older ones in the meantime. A directory that was deleted before
        # it is listed has a newer one, and directories are listed from the oldest on: so the newest is
        # missed only if its directory did not exist yet. Completed ones are not listed again, so that from the second
        # round on there are few, and a round takes less time than a checkpoint.
        directories: dict[int, FileStatus] = {}
        completed: dict[int, FileSystemCompletedCheckpointStorageLocation] = {}
        for _ in range(_MAX_ATTEMPTS):
            known, directories = directories, self._checkpoint_directories()
            has_newest = not completed or max(completed) in directories
            if (
                has_newest
                and directories.keys() - completed.keys() == known.keys() - completed.keys()
            ):
                return completed
            completed = {
                checkpoint_id: completed[checkpoint_id]
                for checkpoint_id in completed
                if checkpoint_id in directories
            }
            for checkpoint_id in sorted(directories.keys() - completed.keys()):
                directory = directories[checkpoint_id]
                for file in file_system_for(directory.uri).list(directory.uri):
                    if uripath.name(file.uri) == METADATA_FILE:
                        completed[checkpoint_id] = FileSystemCompletedCheckpointStorageLocation.at(
                            file, is_link=directory.is_link
                        )
            completed = dict(sorted(completed.items()))
            if known and completed and max(completed) >= max(known):
                return completed  # newer ones were completed since the last listing but one
        message = "job completes and deletes checkpoints faster than they are listed; try again"
        raise StorageUnavailableError(message, self.uri)

    def _checkpoint_directories(self) -> dict[int, FileStatus]:
        directories = {}
        for entry in file_system_for(self.uri).list(self.uri):
            matched = CHECKPOINT.fullmatch(uripath.name(entry.uri))
            if matched is not None and entry.is_directory:
                directories[int(matched[1])] = entry
        return directories


def epoch_of(uri: str) -> int:
    """Return the epoch in a file's name; 0 for any other name."""
    name = uripath.name(uri)
    return int(name) if _NUMBER.fullmatch(name) else 0


def _newest(entries: Iterable[FileStatus]) -> FileStatus:
    return max(entries, key=lambda status: epoch_of(status.uri))


class DirectoryOwnership:
    """A driver's claim to the job in a directory."""

    def __init__(
        self,
        job: JobDirectory,
        record: EpochRecord,
        completed: Mapping[int, CompletedCheckpoint],
    ) -> None:
        self._job = job
        self._owner = record.owner
        self._modified_ms = job.newest_epoch_status().modified_ms
        self.epoch = record.epoch
        self.completed = completed
        self.has_readers = True

    def check(self) -> None:
        entries = self._job.epoch_entries()
        self.has_readers = any(LEASE.fullmatch(uripath.name(entry.uri)) for entry in entries)
        status = _newest(entries)
        if epoch_of(status.uri) < self.epoch:
            # A listing may miss an epoch that is being published and the one that is deleted for it.
            status = self._job.newest_epoch_status()
        newest = epoch_of(status.uri)
        if newest > self.epoch:
            raise CheckpointConflictError.taken_over(self._job.uri, newest=newest, own=self.epoch)
        # The same file has the same time; the owner of any other has to be read.
        is_known = newest == self.epoch and status.modified_ms == self._modified_ms
        if not is_known and (
            newest < self.epoch or self._job.newest_epoch_record().owner != self._owner
        ):
            message = "the claim to this job is gone: its directory was deleted while it ran"
            raise CheckpointConflictError(message, self._job.uri, kind="claim-lost")

    def is_superseded(self, checkpoint_id: int, commit_token: str, /) -> bool:
        known = self._job.newest_epoch_record().completed
        if known.get(checkpoint_id) == commit_token:
            return False
        return any(other > checkpoint_id for other in (*known, *self._job.completed_checkpoints()))

    def ended_before(self, checkpoint_id: int, commit_token: str, /) -> bool:
        record = self._job.newest_epoch_record()
        return record.ends and record.completed.get(checkpoint_id) != commit_token


def new_savepoint_directory(
    job_id: str, target: str | PathLike[str] | None, default: str | None
) -> str:
    """Create a directory with a unique name for a new savepoint.

    Raises:
        InvalidRequestError: There is neither a target nor a default, or it is not valid.
    """
    if target is None and default is None:
        message = "no savepoint directory: name one, or set a default savepoint directory"
        raise InvalidRequestError(message)
    base = savepoint_base(target) if target is not None else default
    directory = uripath.join(str(base), f"savepoint-{job_id}-{uuid.uuid4().hex[:12]}")
    file_system_for(directory).prepare_directory(directory)
    return directory


def savepoint_base(directory: str | PathLike[str]) -> str:
    """Normalize a directory for savepoints.

    Raises:
        InvalidRequestError: The directory can't hold checkpoints, or has the marker.
    """
    base = uripath.checkpoint_directory(directory)
    return refuse_marker(
        base, "a savepoint must have all its files in one directory, so that it can be moved"
    )


def savepoints_in(directory: str) -> list[tuple[FileStatus, str]]:
    """Return the directories of savepoints in a directory, completed or not, each with its job."""
    return [
        (entry, matched["job"])
        for entry in file_system_for(directory).list(directory)
        if entry.is_directory and (matched := SAVEPOINT_NAME.fullmatch(uripath.name(entry.uri)))
    ]
