"""Jobs below some directories, which are read again and again, each time only what is new.

A completed checkpoint never changes, so its `_metadata` is read once. A `CheckpointRecord` without subtasks is kept; the
whole metadata is read again for its own page. The newest checkpoint has the history of the others, so
the others are not urgent: a refresh reads `MAX_BYTES` of them, and the next refresh continues.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from holdfast.cli.report_values import (
    CheckpointRecord,
    Job,
    JobRecords,
    job_of,
    recorded_history,
    without_users,
)
from holdfast.common import Clock, map_in_parallel
from holdfast.errors import CheckpointError, CheckpointNotFoundError
from holdfast.locations.coordination import (
    FoundCheckpoint,
    IncompleteCheckpoint,
    find_incomplete,
    is_job,
    load_if_complete,
    load_savepoint,
    unreadable_checkpoint,
)
from holdfast.locations.file_systems import file_system_for
from holdfast.locations.storages import (
    SAVEPOINT_NAME,
    CompletedCheckpoint,
    FileSystemCheckpointStorage,
    FileSystemCompletedCheckpointStorageLocation,
    JobDirectory,
    load_checkpoint,
    savepoints_in,
    without_marker,
)

MAX_BYTES = 1 << 20
"""Size of the metadata of older checkpoints that a refresh reads: up to a second of work, as large metadata is compressed."""

_MAX_ATTEMPTS = 20

_SKIPS = 11
"""Looks that leave out a directory which is not that of a job: others may keep thousands of them here."""

_Outcome = CheckpointRecord | CheckpointError


class _Budget:
    """The bytes that a refresh may still read."""

    def __init__(self, total_bytes: int) -> None:
        self._left = total_bytes
        self._lock = threading.Lock()

    def take(self, count: int) -> bool:
        """Take some bytes; returns False if none were left."""
        with self._lock:
            is_left = self._left > 0
            self._left -= count
            return is_left


def _outcome_of(checkpoint: FoundCheckpoint) -> _Outcome:
    if isinstance(checkpoint.outcome, CheckpointError):
        return checkpoint.outcome
    try:
        return CheckpointRecord.of(checkpoint.outcome).without_subtasks()
    except CheckpointError as error:
        return error


class WatchedJob:
    """A job's directory.

    Attributes:
        records: The checkpoints that were read; savepoints are left out. None if the directory is not that of a job.
        error: The error of the last refresh; empty if it succeeded. The records are those of an earlier one then.
        version: A number that changes with the records.
        failed_ms: Times of the recorded attempts that failed, milliseconds since 1970 UTC.
    """

    def __init__(self, directory: JobDirectory, job_id: str) -> None:
        self._directory = directory
        self._job_id = job_id
        self._seen: tuple[int, frozenset[str], tuple[IncompleteCheckpoint, ...]] | None = None
        self._locations: Mapping[int, FileSystemCompletedCheckpointStorageLocation] = {}
        self._read: dict[int, _Outcome] = {}
        self._without_history: set[int] = set()
        self._skips = 0
        self.records: JobRecords | None = None
        self.error = ""
        self.version = 0
        self.failed_ms: frozenset[int] = frozenset()

    @property
    def epoch(self) -> int:
        """The epoch that counted at the last refresh."""
        return self._seen[0] if self._seen else 0

    def location(self, checkpoint_id: int) -> FileSystemCompletedCheckpointStorageLocation | None:
        """Return the location of a retained checkpoint; None without one."""
        return self._locations.get(checkpoint_id)

    def refresh(self, budget: _Budget) -> None:
        """Read what is new."""
        if self._skips:
            self._skips -= 1
            return
        try:
            self._refresh(budget)
        except CheckpointError as error:
            self.error = without_users(str(error))
        else:
            self.error = ""

    def _refresh(self, budget: _Budget) -> None:
        uri = self._directory.uri
        entries = [entry for entry in file_system_for(uri).list(uri) if entry.is_directory]
        if not is_job(entries):
            self.records = None
            self._skips = _SKIPS
            return
        epoch = self._directory.newest_epoch()
        if epoch != self.epoch:
            # Only another driver can complete a checkpoint of a number that was rolled back.
            self._locations, self._read = {}, {}
            self._without_history.clear()
        completed = {location.external_pointer for location in self._locations.values()}
        incomplete = tuple(
            find_incomplete(entry for entry in entries if entry.uri not in completed)
        )
        seen = (epoch, frozenset(entry.uri for entry in entries), incomplete)
        if seen == self._seen and len(self._read) == len(self._locations):
            return
        self._read_new(budget)
        self._seen = seen
        self.records = self._new_records(incomplete)
        history, _ = recorded_history(self.records)
        self.failed_ms = frozenset(attempt.failed_ms for attempt in history.failed_attempts)
        self.version += 1

    def _read_new(self, budget: _Budget) -> None:
        for _ in range(_MAX_ATTEMPTS):
            self._locations = self._directory.completed_checkpoints()
            self._read = {
                number: outcome
                for number, outcome in self._read.items()
                if number in self._locations
            }
            self._read_some(self._unread(budget))
            newest = max(self._locations, default=None)
            if newest is None or newest in self._read:
                return
        message = "job completes and deletes checkpoints faster than they are read; try again"
        raise CheckpointNotFoundError(message, self._directory.uri)

    def _unread(self, budget: _Budget) -> list[int]:
        """Return the checkpoints to read now, newest first."""
        unread = sorted(self._locations.keys() - self._read.keys(), reverse=True)
        newest = max(self._locations, default=None)
        chosen = []
        for number in unread:
            has_room = budget.take(self._locations[number].metadata_handle.size)
            if number != newest and not has_room:
                break
            chosen.append(number)
        return chosen

    def _read_some(self, numbers: Sequence[int]) -> None:
        outcomes = map_in_parallel(self._load, numbers)
        self._read |= {
            number: outcome
            for number, outcome in zip(numbers, outcomes, strict=True)
            if outcome is not None
        }
        self._without_history.difference_update(numbers)
        readable = [
            number for number in self._read if isinstance(self._read[number], CheckpointRecord)
        ]
        newest = max(readable, default=None)
        if newest in self._without_history:  # newer ones were rolled back
            del self._read[newest]
            self._read_some([newest])
            return
        for number in readable:
            record = self._read[number]
            if number != newest and isinstance(record, CheckpointRecord) and record.history:
                # That of the newest one contains it.
                self._read[number] = replace(record, history=None)
                self._without_history.add(number)

    def _load(self, number: int) -> _Outcome | None:
        checkpoint = load_if_complete(self._locations[number])
        return None if checkpoint is None else _outcome_of(checkpoint)

    def _new_records(self, incomplete: Sequence[IncompleteCheckpoint]) -> JobRecords:
        numbers = sorted(self._read)
        read = [(number, self._read[number]) for number in numbers]
        return JobRecords(
            job_id=self._job_id,
            checkpoints=[each for _, each in read if isinstance(each, CheckpointRecord)],
            unread_ids=sorted(self._locations.keys() - self._read.keys()),
            unreadable=[
                unreadable_checkpoint(self._locations[number].external_pointer, each)
                for number, each in read
                if isinstance(each, CheckpointError)
            ],
            incomplete=[each for each in incomplete if each.checkpoint_id not in self._locations],
        )


class WatchedDirectory:
    """A directory with directories of jobs, or with savepoints.

    Attributes:
        uri: Its URI.
        jobs: The directories of jobs, by job id.
        savepoints: Completed savepoints by URI: each with the job in its name, and its record or error.
        error: The error of the last refresh; empty if it succeeded.
    """

    def __init__(self, uri: str) -> None:
        self._storage = FileSystemCheckpointStorage(uri)
        self.uri = self._storage.directory
        self.jobs: dict[str, WatchedJob] = {}
        self.savepoints: dict[str, tuple[str, _Outcome]] = {}
        self.error = ""

    def refresh(self, budget: _Budget) -> None:
        """Read what is new in the directory and its jobs."""
        try:
            names = [job for job in self._storage.jobs() if not SAVEPOINT_NAME.fullmatch(job)]
            self._refresh_savepoints()
        except CheckpointError as error:
            self.error = without_users(str(error))
            return
        self.error = ""
        jobs = {name: self.jobs.get(name) or self._job(name) for name in names}
        map_in_parallel(lambda job: job.refresh(budget), list(jobs.values()))
        self.jobs = jobs

    def _job(self, name: str) -> WatchedJob:
        directory = JobDirectory.below(self.uri, name, single_writer=True)
        return WatchedJob(directory, name)

    def _refresh_savepoints(self) -> None:
        named = {entry.uri: job for entry, job in savepoints_in(without_marker(self.uri))}
        known = {uri: self.savepoints[uri] for uri in named if uri in self.savepoints}
        new = [uri for uri in named if uri not in known]
        for uri, savepoint in zip(new, map_in_parallel(load_savepoint, new), strict=True):
            if savepoint is not None:
                outcome = _outcome_of(savepoint)
                job = outcome.view.job if isinstance(outcome, CheckpointRecord) else named[uri]
                known[uri] = (job, outcome)
        self.savepoints = known


class ServedJob:
    """A job under its name in the API.

    Attributes:
        id: The job's name in the API: its id, with `@` and the number of its directory if several have that id.
        directory: URI of the directory with the job's directory; empty if only savepoints are left.
        job_id: The job's id.
        error: Error of reading the job, or empty.
        version: A number that changes when the job changes.
    """

    def __init__(
        self, id: str, directory: str, watched: WatchedJob | None, records: JobRecords
    ) -> None:
        self.id = id
        self.directory = directory
        self.job_id = records.job_id
        self.error = watched.error if watched else ""
        self.version = (
            watched.version if watched else 0,
            len(records.savepoints) + len(records.unreadable_savepoints),
        )
        self._watched = watched
        self._records = records

    def job(self, *, now_ms: int) -> Job:
        """Return the values of the job."""
        return job_of(self._records, now_ms=now_ms)

    def overview(self, *, now_ms: int) -> Job:
        """Return the values of the job without the history of deleted checkpoints, which takes longer."""
        newest = [replace(record, history=None) for record in self._records.checkpoints[-1:]]
        records = replace(self._records, checkpoints=[*self._records.checkpoints[:-1], *newest])
        return job_of(records, now_ms=now_ms)

    @property
    def failures(self) -> frozenset[object]:
        """Marks of everything that failed: two looks at a job differ if something has failed in between."""
        records = self._records
        marks = {each.uri for each in (*records.unreadable, *records.unreadable_savepoints)}
        return frozenset({*marks, *(self._watched.failed_ms if self._watched else ())})

    @property
    def retained_ids(self) -> list[int]:
        """Ids of the completed checkpoints that are retained."""
        return self._records.retained_ids

    def load(self, checkpoint_id: int) -> CompletedCheckpoint:
        """Return a retained checkpoint with its whole metadata.

        Raises:
            CheckpointNotFoundError: There is no such checkpoint, or it was deleted.
            CheckpointCorruptedError: It can't be read.
        """
        location = self._watched.location(checkpoint_id) if self._watched else None
        if self._watched is None or location is None:
            message = f"job {self.id!r} has no retained checkpoint {checkpoint_id}"
            raise CheckpointNotFoundError(message, kind="no-checkpoint")
        return _load(location, self._watched.epoch)


@lru_cache(maxsize=8)
def _load(
    location: FileSystemCompletedCheckpointStorageLocation,
    epoch: int,  # noqa: ARG001  # part of the key: another driver may complete that number again
) -> CompletedCheckpoint:
    return load_checkpoint(location)


class Jobs:
    """All jobs below some directories.

    Args:
        directories: URIs of checkpoint directories, and of directories with savepoints.
        clock: The clock for ages.
        interval_s: Time between two looks at the storage.
        configure: Configures the stores of all files of a checkpoint.
        drivers: URLs of the metrics of running drivers.
    """

    def __init__(
        self,
        directories: Sequence[str],
        *,
        clock: Clock,
        interval_s: float,
        configure: Callable[[CompletedCheckpoint], None] = lambda _: None,
        drivers: Sequence[str] = (),
    ) -> None:
        self.clock = clock
        self.interval_s = interval_s
        self.drivers = drivers
        self.directories = [WatchedDirectory(uri) for uri in dict.fromkeys(directories)]
        self._configure = configure
        self._lock = threading.Lock()
        self._refreshed_s: float | None = None
        self._served: dict[str, ServedJob] = {}

    def refresh(self, *, max_age_s: float | None = None) -> None:
        """Read what is new, if the last look is older than `max_age_s`, by default the interval."""
        oldest_s = self.interval_s if max_age_s is None else max_age_s
        has_older = self._refreshed_s is not None and max_age_s is None
        if not self._lock.acquire(blocking=not has_older):
            return  # another thread looks at a slow store; the values of its last look are still there
        try:
            now_s = self.clock.monotonic_s()
            if self._refreshed_s is not None and now_s - self._refreshed_s < oldest_s:
                return
            budget = _Budget(MAX_BYTES)
            for directory in self.directories:
                directory.refresh(budget)
            served = sorted(self._serve(), key=lambda job: job.id)
            self._served = {job.id: job for job in served}
            self._refreshed_s = now_s
        finally:
            self._lock.release()

    def all(self) -> list[ServedJob]:
        """Return all jobs, sorted by their names in the API."""
        self.refresh()
        return list(self._served.values())

    def find(self, id: str) -> ServedJob:
        """Return a job by its name in the API.

        Raises:
            CheckpointNotFoundError: There is no such job.
        """
        self.refresh()
        try:
            return self._served[id]
        except KeyError:
            raise CheckpointNotFoundError(f"there is no job {id!r}", kind="no-checkpoint") from None

    def checkpoint(self, job: ServedJob, checkpoint_id: int) -> CompletedCheckpoint:
        """Return a retained checkpoint, whose files can be read then. Raises as `ServedJob.load` does."""
        checkpoint = job.load(checkpoint_id)
        self._configure(checkpoint)
        return checkpoint

    def newest(self, job: ServedJob) -> CompletedCheckpoint:
        """Return the newest checkpoint of a job. Raises as `ServedJob.load` does."""
        if not job.retained_ids:
            raise CheckpointNotFoundError(
                f"job {job.id!r} has no completed checkpoint", kind="no-checkpoint"
            )
        return self.checkpoint(job, job.retained_ids[-1])

    def _serve(self) -> Iterator[ServedJob]:
        savepoints: dict[str, dict[str, _Outcome]] = {}
        for directory in self.directories:
            for uri, (job_id, outcome) in directory.savepoints.items():
                savepoints.setdefault(job_id, {})[uri] = outcome
        jobs = [
            (number, job_id, watched, watched.records or JobRecords(job_id, []))
            for number, directory in enumerate(self.directories, 1)
            for job_id, watched in directory.jobs.items()
            if watched.records is not None or watched.error
        ]
        job_ids = [job_id for _, job_id, _, _ in jobs]
        for number, job_id, watched, records in jobs:
            id = job_id if job_ids.count(job_id) == 1 else f"{job_id}@{number}"
            with_savepoints = _with_savepoints(records, savepoints.get(job_id, {}))
            yield ServedJob(id, self.directories[number - 1].uri, watched, with_savepoints)
        for job_id in savepoints.keys() - set(job_ids):
            records = _with_savepoints(JobRecords(job_id, []), savepoints[job_id])
            yield ServedJob(job_id, "", None, records)


def _with_savepoints(records: JobRecords, savepoints: Mapping[str, _Outcome]) -> JobRecords:
    readable = [each for each in savepoints.values() if isinstance(each, CheckpointRecord)]
    return replace(
        records,
        savepoints=sorted(readable, key=lambda record: record.view.completed_ms),
        unreadable_savepoints=[
            unreadable_checkpoint(uri, each)
            for uri, each in savepoints.items()
            if isinstance(each, CheckpointError)
        ],
    )
