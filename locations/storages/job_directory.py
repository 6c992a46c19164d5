"""A job's directory, which `layout` draws, and directories of savepoints."""

import uuid
from dataclasses import dataclass
from os import PathLike

from holdfast.common import uripath
from holdfast.errors import CheckpointNotFoundError, InvalidRequestError, StorageUnavailableError
from holdfast.locations.file_systems import (
    PROBE_PREFIX,
    FileStatus,
    check_exclusive,
    file_system_for,
)
from holdfast.locations.storages.completed import FileSystemCompletedCheckpointStorageLocation
from holdfast.locations.storages.layout import (
    CHECKPOINT,
    EPOCHS,
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
from holdfast.locations.storages.ownership import DirectoryOwnership

_MAX_LISTINGS = 100


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
            raise InvalidRequestError(message, self.state_uri) from error

    def claim(self, *, ends: bool = False) -> DirectoryOwnership:
        """Become the job's owner. With `ends` no checkpoint of the job will follow."""
        return DirectoryOwnership.claim(
            self.uri, self.completed_checkpoints, single_writer=self.single_writer, ends=ends
        )

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
        for _ in range(_MAX_LISTINGS):
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
