"""Find checkpoints and savepoints by the directories that they are below."""

from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike

from holdfast.common import map_in_parallel, uripath
from holdfast.errors import CheckpointError, CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.coordination.checkpoints import load_latest_checkpoint
from holdfast.locations.storages import (
    CHECKPOINT,
    JOB_ID,
    CompletedCheckpoint,
    CompletedCheckpointStorageLocation,
    JobDirectory,
    find_metadata,
    list_each,
    load_checkpoint,
    resolve_pointer,
    without_marker,
)

_MAX_ATTEMPTS = 100

_LEVELS = 3
"""Directories on the way down to those of jobs: the one that is given, one with all checkpoints or
savepoints of a job in it, and one that divides both from each other."""


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A completed checkpoint or savepoint that was found below a directory.

    Attributes:
        pointer: URI of its directory.
        outcome: The checkpoint, or why its metadata can't be read.
    """

    pointer: str
    outcome: CompletedCheckpoint | CheckpointError

    @property
    def checkpoint(self) -> CompletedCheckpoint | None:
        """The checkpoint with its metadata; None if it can't be read."""
        return self.outcome if isinstance(self.outcome, CompletedCheckpoint) else None

    @property
    def failure(self) -> CheckpointError | None:
        """Why its metadata can't be read; None if it can."""
        return self.outcome if isinstance(self.outcome, CheckpointError) else None

    @property
    def is_savepoint(self) -> bool:
        """Whether this is a savepoint, which belongs to the user, and not to a job."""
        return is_savepoint(self.pointer)


def is_savepoint(pointer: str) -> bool:
    """Whether a directory with `_metadata` in it is that of a savepoint."""
    return CHECKPOINT.fullmatch(uripath.name(pointer)) is None


def find_checkpoints(directory: str | PathLike[str]) -> list[FoundCheckpoint]:
    """All completed checkpoints and savepoints below a directory; jobs may be running.

    Args:
        directory: URI of a checkpoint directory, of a job's own, of one with savepoints, of one that
            holds such directories, or of a checkpoint or savepoint itself.

    Returns:
        Sorted by job, and oldest first within a job. What a job has deleted meanwhile is left out.

    Raises:
        InvalidRequestError: The URI can't be that of such a directory.
        StorageUnavailableError: The store can't be read.
    """
    uri = _directory(directory)
    jobs: list[JobDirectory] = []
    checkpoints = map_in_parallel(loaded, list(_locations(uri, jobs)))
    found = [checkpoint for checkpoint in checkpoints if checkpoint is not None]
    for of_job in map_in_parallel(find_in_job, jobs):
        found += of_job
    return sorted(found, key=_order)


def find_in_job(job: JobDirectory) -> list[FoundCheckpoint]:
    """All completed checkpoints of a job, which may be running; surely the newest, unless there is none.

    Raises:
        CheckpointNotFoundError: The job completes and deletes them faster than they are read.
    """
    known: dict[int, FoundCheckpoint | None] = {}
    for _ in range(_MAX_ATTEMPTS):
        completed = job.completed_checkpoints()
        new = [number for number in completed if number not in known]
        read = map_in_parallel(loaded, [completed[number] for number in new])
        known.update(zip(new, read, strict=True))
        if not completed or known[max(completed)] is not None:
            there = (known[number] for number in completed)
            return [checkpoint for checkpoint in there if checkpoint is not None]
    message = "the job completes and deletes checkpoints faster than they are read; try again"
    raise CheckpointNotFoundError(message, job.uri)


def is_gone(checkpoint: CompletedCheckpoint) -> bool:
    """Whether a checkpoint was deleted since it was read, as far as can be told: `_metadata` goes first."""
    try:
        load_checkpoint(checkpoint.location)
    except CheckpointNotFoundError:
        return True
    except CheckpointError:
        return False
    return False


def find_checkpoint(pointer: str | PathLike[str]) -> CompletedCheckpoint:
    """The checkpoint or savepoint that somebody means.

    Args:
        pointer: URI of its directory or of its metadata file; or of a directory that jobs have
            theirs in, or of a job's own, for the newest checkpoint there.

    Raises:
        CheckpointNotFoundError: There is none.
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
            raise CheckpointNotFoundError(message, directory) from None
        return newest
    return load_checkpoint(location)


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
        kind = "jobs have checkpoints" if jobs else "savepoints are"
        names = ", ".join(pointer.removeprefix(f"{directory}/") for pointer in several)
        raise InvalidRequestError(f"several {kind} here, name one of: {names}", directory)
    return load_checkpoint(resolve_pointer(several[0])) if several else None


def _locations(
    directory: str, jobs: list[JobDirectory]
) -> Iterator[CompletedCheckpointStorageLocation]:
    """All completed savepoints, as many directories down as people put them, and checkpoints that are named.

    Args:
        directory: Where to look.
        jobs: The directories of jobs on the way are added to it.
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
            elif any(CHECKPOINT.fullmatch(uripath.name(entry)) for entry in below):
                jobs.append(JobDirectory(uri, single_writer=False))
            else:
                level += [entry for entry in below if JOB_ID.fullmatch(uripath.name(entry))]


def loaded(location: CompletedCheckpointStorageLocation) -> FoundCheckpoint | None:
    """The checkpoint at a location, readable or not; None if it is gone since it was listed."""
    pointer = location.external_pointer
    try:
        return FoundCheckpoint(pointer, load_checkpoint(location))
    except CheckpointNotFoundError:
        return None  # by the running job
    except CheckpointError as failure:
        return FoundCheckpoint(pointer, failure)


def _order(entry: FoundCheckpoint) -> tuple[str, int, str]:
    if entry.checkpoint is not None:
        metadata = entry.checkpoint.metadata
        return metadata.job_id, metadata.checkpoint_id, entry.pointer
    matched = CHECKPOINT.fullmatch(uripath.name(entry.pointer))
    if matched is None:
        return "", -1, entry.pointer
    return uripath.name(uripath.parent(entry.pointer)), int(matched[1]), entry.pointer
