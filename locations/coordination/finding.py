"""Find checkpoints and savepoints by the directories that they are below."""

from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike

from holdfast.common import in_parallel, uripath
from holdfast.errors import CheckpointError, CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.coordination.checkpoints import load_latest_checkpoint
from holdfast.locations.storages import (
    CHECKPOINT,
    JOB_ID,
    METADATA_FILE,
    CompletedCheckpoint,
    CompletedCheckpointStorageLocation,
    JobDirectory,
    list_each,
    load_checkpoint,
    metadata_at,
    resolve_pointer,
    without_marker,
)

_LEVELS = 3
"""Directories on the way down to those of jobs: the one that is given, one with all checkpoints or
savepoints of a job in it, and one that divides both from each other."""


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A completed checkpoint or savepoint that was found below a directory.

    Attributes:
        pointer: URI of its directory.
        outcome: What it holds, or why its metadata can't be read.
    """

    pointer: str
    outcome: CompletedCheckpoint | CheckpointError

    @property
    def checkpoint(self) -> CompletedCheckpoint | None:
        """What it holds; None if its metadata can't be read."""
        return self.outcome if isinstance(self.outcome, CompletedCheckpoint) else None

    @property
    def failure(self) -> CheckpointError | None:
        """Why its metadata can't be read; None if it can."""
        return self.outcome if isinstance(self.outcome, CheckpointError) else None

    @property
    def is_savepoint(self) -> bool:
        """Whether it belongs to the user, and not to a job."""
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
        By job, and oldest first within it. What a job has deleted meanwhile is left out.

    Raises:
        InvalidRequestError: It can't be such a directory.
        StorageUnavailableError: The store can't be read.
    """
    uri = _directory(directory)
    found = in_parallel(loaded, list(_locations(uri)))
    return sorted((one for one in found if one is not None), key=_order)


def find_checkpoint(pointer: str | PathLike[str]) -> CompletedCheckpoint:
    """The checkpoint or savepoint that somebody means.

    Args:
        pointer: URI of its directory or of its metadata file; or of a directory that jobs have
            theirs in, or of a job's own, for the newest checkpoint there.

    Raises:
        CheckpointNotFoundError: There is none.
        CheckpointCorruptedError: It is damaged; an older one is not used instead.
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
    pointers = [one.external_pointer for one in _locations(directory)]
    jobs = sorted({uripath.parent(one) for one in pointers if not is_savepoint(one)})
    if len(jobs) == 1:
        return load_latest_checkpoint(JobDirectory(jobs[0], single_writer=False))
    several = jobs or sorted(pointers)
    if len(several) > 1:
        kind = "jobs have checkpoints" if jobs else "savepoints are"
        names = ", ".join(one.removeprefix(f"{directory}/") for one in several)
        raise InvalidRequestError(f"several {kind} here, name one of: {names}", directory)
    return load_checkpoint(resolve_pointer(several[0])) if several else None


def _locations(directory: str) -> Iterator[CompletedCheckpointStorageLocation]:
    """Everything that is completed, as far down as somebody would put it."""
    level = [directory]
    for _ in range(_LEVELS):
        inside = list_each(level)
        level = []
        for uri, entries in inside.items():
            names = {uripath.name(entry.uri): entry for entry in entries}
            below = [entry.uri for entry in entries if entry.is_directory]
            if METADATA_FILE in names:
                yield metadata_at(names[METADATA_FILE].uri, names[METADATA_FILE].size)
            elif any(CHECKPOINT.fullmatch(uripath.name(one)) for one in below):
                yield from JobDirectory(uri, single_writer=False).completed_checkpoints().values()
            else:
                level += [one for one in below if JOB_ID.fullmatch(uripath.name(one))]


def loaded(location: CompletedCheckpointStorageLocation) -> FoundCheckpoint | None:
    """What is there; None if it is gone since it was listed."""
    pointer = location.external_pointer
    try:
        return FoundCheckpoint(pointer, load_checkpoint(location))
    except CheckpointNotFoundError:
        return None  # by the running job
    except CheckpointError as failure:
        return FoundCheckpoint(pointer, failure)


def _order(found: FoundCheckpoint) -> tuple[str, int, str]:
    if found.checkpoint is not None:
        metadata = found.checkpoint.metadata
        return metadata.job_id, metadata.checkpoint_id, found.pointer
    matched = CHECKPOINT.fullmatch(uripath.name(found.pointer))
    if matched is None:
        return "", -1, found.pointer
    return uripath.name(uripath.parent(found.pointer)), int(matched[1]), found.pointer
