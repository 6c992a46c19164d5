"""The history of jobs in storage: completed checkpoints, failures, gaps, leftovers.

Reading it writes nothing except the small file from which a dry sweep learns the store's time. Checkpoints that can't be
read are listed next to the others, so that one damaged file hides nothing else.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from os import PathLike

from holdfast.common import map_in_parallel, uripath
from holdfast.errors import CheckpointError, CheckpointNotFoundError
from holdfast.locations.coordination.checkpoints import (
    FoundCheckpoint,
    find_in_job,
    load_if_complete,
)
from holdfast.locations.coordination.sweeping import GRACE_S, SweepReport, sweep
from holdfast.locations.file_systems import FileStatus, file_system_for
from holdfast.locations.storages import (
    CHECKPOINT,
    EPOCHS,
    METADATA_FILE,
    SAVEPOINT_NAME,
    SHARED,
    CompletedCheckpoint,
    FileSystemCheckpointStorage,
    JobDirectory,
    list_each,
    resolve_pointer,
    savepoint_base,
    savepoints_in,
)


@dataclass(frozen=True, slots=True)
class UnreadableCheckpoint:
    """A completed checkpoint or savepoint whose metadata can't be read.

    Attributes:
        checkpoint_id: The checkpoint's number; None for a savepoint, whose name has none.
        uri: The directory's URI.
        error: The error of reading it.
    """

    checkpoint_id: int | None
    uri: str
    error: CheckpointError


@dataclass(frozen=True, slots=True)
class IncompleteCheckpoint:
    """A checkpoint's directory without metadata: the checkpoint failed, is being deleted, or is in progress.

    Attributes:
        checkpoint_id: The checkpoint's number.
        uri: The directory.
        files: Number of files in it. Object stores have no empty directories.
        total_bytes: Their length.
        modified_ms: Time of the last write in it by the store's clock, milliseconds
            since 1970 UTC; 0 if the store does not report it.
    """

    checkpoint_id: int
    uri: str
    files: int
    total_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class JobHistory:
    """The checkpoints, failures and leftovers of one job.

    Attributes:
        job_id: The job.
        checkpoints: Completed ones that are retained, oldest first.
        unreadable: The checkpoints among them that can't be read, oldest first.
        incomplete: Directories without metadata, oldest first.
        savepoints: The job's savepoints, oldest first.
        unreadable_savepoints: The savepoints that can't be read.
        leftovers: The files that a sweep would delete; the error that stops it; None if the job has no
            directory to sweep.
    """

    job_id: str
    checkpoints: tuple[CompletedCheckpoint, ...] = ()
    unreadable: tuple[UnreadableCheckpoint, ...] = ()
    incomplete: tuple[IncompleteCheckpoint, ...] = ()
    savepoints: tuple[CompletedCheckpoint, ...] = ()
    unreadable_savepoints: tuple[UnreadableCheckpoint, ...] = ()
    leftovers: SweepReport | CheckpointError | None = None

    @property
    def retained_ids(self) -> list[int]:
        """Ids of all completed checkpoints, including those that can't be read."""
        known = (checkpoint.checkpoint_id for checkpoint in self.checkpoints)
        return with_unreadable(known, self.unreadable)

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """First and last id of each missing range between retained checkpoints."""
        return missing_ranges(self.retained_ids)


def with_unreadable(known: Iterable[int], unreadable: Iterable[UnreadableCheckpoint]) -> list[int]:
    """Return ids of checkpoints with those of checkpoints that can't be read, in ascending order."""
    numbers = (each.checkpoint_id for each in unreadable)
    return sorted({*known, *(number for number in numbers if number is not None)})


def missing_ranges(ids: Sequence[int]) -> list[tuple[int, int]]:
    """Return first and last id of each missing range between ids in ascending order."""
    return [(low + 1, high - 1) for low, high in pairwise(ids) if high - low > 1]


def job_histories(
    directory: str | PathLike[str],
    *,
    savepoint_directory: str | PathLike[str] | None = None,
    grace_s: float = GRACE_S,
) -> list[JobHistory]:
    """Return the history of each job below a checkpoint directory, sorted by job; jobs may be running.

    Args:
        directory: URI, or a `pathlib.Path`, of the checkpoint directory, as the jobs have it: with
            `_entropy_` if they have that.
        savepoint_directory: A directory with savepoints, besides `directory`.
        grace_s: As in `sweep`; this makes a dry run of it.

    Raises:
        InvalidRequestError: A directory is not valid.
        StorageUnavailableError: A directory can't be listed.
    """
    storage = FileSystemCheckpointStorage(uripath.text(directory))
    jobs = [job for job in storage.jobs() if not SAVEPOINT_NAME.fullmatch(job)]
    histories = {
        job: history
        for job in jobs
        if (history := _history(storage.directory, job, savepoint_directory, grace_s)) is not None
    }
    here = JobDirectory.below(storage.directory, "job", single_writer=True)
    places = {uripath.parent(here.uri)}
    if savepoint_directory is not None:
        places.add(savepoint_base(savepoint_directory))
    for job_id, savepoints, unreadable in _savepoints(sorted(places)):
        histories[job_id] = replace(
            histories.get(job_id, JobHistory(job_id)),
            savepoints=savepoints,
            unreadable_savepoints=unreadable,
        )
    return [histories[job_id] for job_id in sorted(histories)]


def _history(
    directory: str,
    job_id: str,
    savepoint_directory: str | PathLike[str] | None,
    grace_s: float,
) -> JobHistory | None:
    """Return the history of a job without its savepoints; None if the directory is not that of a job."""
    job = JobDirectory.below(directory, job_id, single_writer=True)
    entries = [entry for entry in file_system_for(job.uri).list(job.uri) if entry.is_directory]
    if not is_job(entries):
        return None  # without a directory that a sweep could write to
    checkpoints, unreadable = [], []
    for entry in find_in_job(job):
        if isinstance(entry.outcome, CheckpointError):
            unreadable.append(unreadable_checkpoint(entry.pointer, entry.outcome))
        else:
            checkpoints.append(entry.outcome)
    history = JobHistory(
        job_id, tuple(checkpoints), tuple(unreadable), tuple(find_incomplete(entries))
    )
    try:
        leftovers = sweep(
            directory,
            job_id,
            savepoint_directory=savepoint_directory,
            grace_s=grace_s,
            dry_run=True,
        )
    except CheckpointError as error:
        return replace(history, leftovers=error)
    return replace(history, leftovers=leftovers)


def is_job(entries: Iterable[FileStatus]) -> bool:
    """Return whether a directory with these entries is that of a job."""
    names = (uripath.name(entry.uri) for entry in entries if entry.is_directory)
    return any(name in (SHARED, EPOCHS) or CHECKPOINT.fullmatch(name) for name in names)


def unreadable_checkpoint(pointer: str, error: CheckpointError) -> UnreadableCheckpoint:
    """Return the entry of a checkpoint or savepoint that can't be read."""
    named = CHECKPOINT.fullmatch(uripath.name(pointer))
    return UnreadableCheckpoint(int(named[1]) if named else None, pointer, error)


def find_incomplete(entries: Iterable[FileStatus]) -> list[IncompleteCheckpoint]:
    """Return the checkpoints without metadata among the entries of a job's directory."""
    incomplete = []
    directories = {
        entry.uri: (int(matched[1]), entry)
        for entry in entries
        if (matched := CHECKPOINT.fullmatch(uripath.name(entry.uri)))
    }
    for uri, inside in list_each(list(directories)).items():
        if any(uripath.name(file.uri) == METADATA_FILE for file in inside):
            continue
        number, entry = directories[uri]
        modified_ms = max([file.modified_ms for file in inside], default=entry.modified_ms)
        total_bytes = sum(file.size for file in inside)
        incomplete.append(IncompleteCheckpoint(number, uri, len(inside), total_bytes, modified_ms))
    return sorted(incomplete, key=lambda checkpoint: checkpoint.checkpoint_id)


def _savepoints(
    places: Iterable[str],
) -> Iterator[tuple[str, tuple[CompletedCheckpoint, ...], tuple[UnreadableCheckpoint, ...]]]:
    """Yield the savepoints of each job, oldest first; the sweep reports those without metadata."""
    readable: dict[str, list[CompletedCheckpoint]] = defaultdict(list)
    unreadable: dict[str, list[UnreadableCheckpoint]] = defaultdict(list)
    named = {entry.uri: job_id for place in places for entry, job_id in savepoints_in(place)}
    for savepoint in map_in_parallel(load_savepoint, list(named)):
        if savepoint is not None and savepoint.checkpoint is not None:
            readable[savepoint.checkpoint.metadata.job_id].append(savepoint.checkpoint)
        elif savepoint is not None and savepoint.failure is not None:
            unreadable[named[savepoint.pointer]].append(
                unreadable_checkpoint(savepoint.pointer, savepoint.failure)
            )
    for job_id in readable.keys() | unreadable.keys():
        oldest_first = sorted(readable[job_id], key=lambda each: each.metadata.created_ms)
        yield job_id, tuple(oldest_first), tuple(unreadable[job_id])


def load_savepoint(uri: str) -> FoundCheckpoint | None:
    """Return the savepoint in a directory, readable or not; None if it was not completed."""
    try:
        return load_if_complete(resolve_pointer(uri))
    except CheckpointNotFoundError:
        return None
