"""Completed checkpoints and savepoints: read those of a job, and find them below a directory. Jobs may be running."""

from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike

from holdfast.common import map_in_parallel, uripath
from holdfast.errors import CheckpointError, CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.storages import (
    CHECKPOINT,
    JOB_ID,
    CheckpointStorageAccess,
    CompletedCheckpoint,
    CompletedCheckpointStorageLocation,
    FileSystemCheckpointStorage,
    JobDirectory,
    find_metadata,
    is_checkpoint,
    list_each,
    load_checkpoint,
    resolve_pointer,
    without_marker,
)

_MAX_ATTEMPTS = 100

_LEVELS = 3
"""Levels from the given directory to the directories of jobs: one with all checkpoints or savepoints of a job in it,
and one that separates checkpoints from savepoints, may be in between."""


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A completed checkpoint or savepoint that was found below a directory.

    Attributes:
        pointer: URI of its directory.
        outcome: The checkpoint, or the error of reading its metadata.
    """

    pointer: str
    outcome: CompletedCheckpoint | CheckpointError

    @property
    def checkpoint(self) -> CompletedCheckpoint | None:
        """The checkpoint with its metadata; None if it can't be read."""
        return self.outcome if isinstance(self.outcome, CompletedCheckpoint) else None

    @property
    def failure(self) -> CheckpointError | None:
        """The error of reading its metadata; None if it can be read."""
        return self.outcome if isinstance(self.outcome, CheckpointError) else None

    @property
    def is_savepoint(self) -> bool:
        """True for a savepoint, which belongs to the user and not to a job."""
        return is_savepoint(self.pointer)


def is_savepoint(pointer: str) -> bool:
    """Return whether a directory with `_metadata` in it is a savepoint."""
    return not is_checkpoint(pointer)


def load_latest_checkpoint(
    access: CheckpointStorageAccess | JobDirectory,
) -> CompletedCheckpoint | None:
    """Return a job's completed checkpoint with the highest id, or None.

    A damaged one is an error and not skipped: an older one would silently restore older state.
    """
    for _ in range(_MAX_ATTEMPTS):
        completed = access.completed_checkpoints()
        if not completed:
            return None
        location = completed[max(completed)]
        try:
            return load_checkpoint(location)
        except CheckpointNotFoundError:
            continue  # the job has completed a newer one and deleted this one
    raise _vanishing_error(location.external_pointer)


def load_checkpoints(access: CheckpointStorageAccess | JobDirectory) -> list[CompletedCheckpoint]:
    """Return all completed checkpoints of a job, oldest first."""
    loaded: dict[int, CompletedCheckpoint] = {}
    for _ in range(_MAX_ATTEMPTS):
        completed = access.completed_checkpoints()
        try:
            # The ones that are deleted next are read last, so that most have been read by then.
            for checkpoint_id in sorted(completed.keys() - loaded.keys(), reverse=True):
                loaded[checkpoint_id] = load_checkpoint(completed[checkpoint_id])
        except CheckpointNotFoundError:
            continue  # deleted by the job; a newer one may refer to its shared files
        return [loaded[checkpoint_id] for checkpoint_id in completed]
    raise _vanishing_error(completed[max(completed)].external_pointer)


def latest_checkpoint(
    directory: str | PathLike[str], job_id: str | None = None
) -> CompletedCheckpoint | None:
    """Return the completed checkpoint with the highest id below a checkpoint directory, verified.

    Args:
        directory: URI, or a `pathlib.Path`, of the directory with the directories of jobs.
        job_id: The job; optional if there is only one.

    Returns:
        None if there is no completed checkpoint.

    Raises:
        InvalidRequestError: There are several jobs, and no `job_id` is given.
        CheckpointCorruptedError: The latest is damaged; an older one is not used instead.
    """
    storage = FileSystemCheckpointStorage(uripath.text(directory))
    if job_id is None:
        jobs = storage.jobs()
        if len(jobs) > 1:
            message = f"several jobs have checkpoints here, name one of: {', '.join(jobs)}"
            raise InvalidRequestError(message, storage.directory)
        if not jobs:
            return None
        (job_id,) = jobs
    return load_latest_checkpoint(storage.create_checkpoint_storage(job_id))


def find_checkpoints(directory: str | PathLike[str]) -> list[FoundCheckpoint]:
    """Return all completed checkpoints and savepoints below a directory.

    Args:
        directory: URI of a checkpoint directory, of the directory of a job, of one with savepoints, of one with
            such directories in it, or of a checkpoint or savepoint itself.

    Returns:
        Sorted by job, oldest first within a job. Checkpoints that a job deletes in the meantime are omitted.

    Raises:
        InvalidRequestError: The URI is not valid for such a directory.
        StorageUnavailableError: The store can't be read.
    """
    uri = _directory(directory)
    jobs: list[JobDirectory] = []
    checkpoints = map_in_parallel(load_if_complete, list(_locations(uri, jobs)))
    results = [checkpoint for checkpoint in checkpoints if checkpoint is not None]
    for checkpoints_of_job in map_in_parallel(find_in_job, jobs):
        results += checkpoints_of_job
    return sorted(results, key=_order)


def find_in_job(job: JobDirectory) -> list[FoundCheckpoint]:
    """Return all completed checkpoints of a job; the newest is never missed.

    Raises:
        CheckpointNotFoundError: The job completes and deletes them faster than they are read.
    """
    known: dict[int, FoundCheckpoint | None] = {}
    for _ in range(_MAX_ATTEMPTS):
        completed = job.completed_checkpoints()
        new = [number for number in completed if number not in known]
        read = map_in_parallel(load_if_complete, [completed[number] for number in new])
        known.update(zip(new, read, strict=True))
        if not completed or known[max(completed)] is not None:
            results = (known[number] for number in completed)
            return [checkpoint for checkpoint in results if checkpoint is not None]
    raise _vanishing_error(job.uri)


def find_checkpoint(pointer: str | PathLike[str]) -> CompletedCheckpoint:
    """Return a checkpoint or savepoint by its pointer, or the newest one of the only job below a directory.

    Args:
        pointer: URI of its directory or of its metadata file; or of a directory with directories of jobs, or of
            the directory of a job.

    Raises:
        CheckpointNotFoundError: No checkpoint is there.
        CheckpointCorruptedError: The checkpoint is damaged; an older one is not used instead.
        InvalidRequestError: There are several jobs, or several savepoints, below it.
    """
    try:
        location = resolve_pointer(pointer)
    except CheckpointNotFoundError:
        directory = _directory(pointer)
        newest = _newest_below(directory)
        if newest is None:
            message = "no completed checkpoint or savepoint here or below"
            raise CheckpointNotFoundError(message, directory, kind="no-checkpoint") from None
        return newest
    return load_checkpoint(location)


def is_gone(checkpoint: CompletedCheckpoint) -> bool:
    """Return whether a checkpoint was deleted since it was read: `_metadata` is deleted first."""
    try:
        load_checkpoint(checkpoint.location)
    except CheckpointNotFoundError:
        return True
    except CheckpointError:
        return False
    return False


def load_if_complete(location: CompletedCheckpointStorageLocation) -> FoundCheckpoint | None:
    """Return the checkpoint at a location, readable or not; None if it was deleted since it was listed."""
    pointer = location.external_pointer
    try:
        return FoundCheckpoint(pointer, load_checkpoint(location))
    except CheckpointNotFoundError:
        return None
    except CheckpointError as failure:
        return FoundCheckpoint(pointer, failure)


def _directory(directory: str | PathLike[str]) -> str:
    uri = uripath.checkpoint_directory(directory)
    return (
        uri if uripath.scheme(uri) == "file" else uripath.checkpoint_directory(without_marker(uri))
    )


def _newest_below(directory: str) -> CompletedCheckpoint | None:
    directories: list[JobDirectory] = []
    pointers = [location.external_pointer for location in _locations(directory, directories)]
    jobs = sorted(job.uri for job in directories if job.completed_checkpoints())
    if len(jobs) == 1:
        return load_latest_checkpoint(JobDirectory(jobs[0], single_writer=False))
    several = jobs or sorted(pointers)
    if len(several) > 1:
        subject = "jobs have checkpoints" if jobs else "savepoints are"
        names = ", ".join(pointer.removeprefix(f"{directory}/") for pointer in several)
        raise InvalidRequestError(f"several {subject} here, name one of: {names}", directory)
    return load_checkpoint(resolve_pointer(several[0])) if several else None


def _locations(
    directory: str, jobs: list[JobDirectory]
) -> Iterator[CompletedCheckpointStorageLocation]:
    """Yield all completed savepoints down to `_LEVELS` below a directory, and the checkpoint at the directory itself.

    The directories of jobs on the way are appended to `jobs`.
    """
    level = [directory]
    for _ in range(_LEVELS):
        inside = list_each(level)
        level = []
        for uri, entries in inside.items():
            below = [entry.uri for entry in entries if entry.is_directory]
            metadata = find_metadata(entries)
            if metadata is not None:
                yield metadata
            elif any(is_checkpoint(entry) for entry in below):
                jobs.append(JobDirectory(uri, single_writer=False))
            else:
                level += [entry for entry in below if JOB_ID.fullmatch(uripath.name(entry))]


def _order(entry: FoundCheckpoint) -> tuple[str, int, str]:
    if entry.checkpoint is not None:
        metadata = entry.checkpoint.metadata
        return metadata.job_id, metadata.checkpoint_id, entry.pointer
    matched = CHECKPOINT.fullmatch(uripath.name(entry.pointer))
    if matched is None:
        return "", -1, entry.pointer
    return uripath.name(uripath.parent(entry.pointer)), int(matched[1]), entry.pointer


def _vanishing_error(location: str) -> CheckpointNotFoundError:
    message = "the job completes and deletes checkpoints faster than they are read; try again"
    return CheckpointNotFoundError(message, location)
