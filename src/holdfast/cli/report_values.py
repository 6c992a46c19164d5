"""The values of a report, gathered from the checkpoints below a directory: the page and the JSON show them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import pairwise
from statistics import median
from typing import Any, Self

import msgspec

from holdfast.cli.output import ms_text, span_text
from holdfast.errors import CheckpointError
from holdfast.locations.coordination import (
    IncompleteCheckpoint,
    JobHistory,
    SweepReport,
    UnreadableCheckpoint,
    job_histories,
    missing_ranges,
    with_unreadable,
)
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark_progress import (
    HISTORY,
    CheckpointStatistics,
    CheckpointView,
    History,
    checkpoint_statistics,
    iso_time,
    merge_history,
)

_USER = re.compile(r"(?<=://)[^/@\s]*@")

QUIET_FACTOR, MIN_QUIET_MS = 10, 60_000
"""A job is quiet if its newest checkpoint is older than this many times their usual interval."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A checkpoint or savepoint that can't be read or was not completed.

    Attributes:
        checkpoint: Checkpoint id; None for a savepoint.
        pointer: URI of its directory, without a user's name.
        reason: `unreadable`, or `incomplete` for a directory without metadata.
        error: Error message of an unreadable checkpoint.
        files: Number of files of an incomplete checkpoint.
        bytes: Size of these files.
        modified: Time of the last write to it, ISO 8601 in UTC; None if unknown.
    """

    checkpoint: int | None
    pointer: str
    reason: str
    error: str = ""
    files: int = 0
    bytes: int = 0
    modified: str | None = None


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file or unfinished upload that a sweep would delete; the size of an upload is not known."""

    uri: str
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Sweep:
    """The files that a sweep would delete.

    Attributes:
        error: Error message if a sweep would fail and delete nothing.
        files: Files and unfinished uploads.
        directories: URIs of directories.
        bytes: Size of the files.
        within_grace: Number of unreferenced files that may still be written.
    """

    error: str
    files: list[Leftover]
    directories: list[str]
    bytes: int
    within_grace: int


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """The values of a completed checkpoint that a job is made of.

    Attributes:
        view: The checkpoint.
        statistics: Its row in the history.
        history: The recorded history of the checkpoints before it, encoded; None without one.
    """

    view: CheckpointView
    statistics: CheckpointStatistics
    history: bytes | None

    @classmethod
    def of(cls, checkpoint: CompletedCheckpoint) -> Self:
        view = CheckpointView.of(checkpoint, allow_corrupt_progress=True)
        view = msgspec.structs.replace(
            view,
            pointer=without_users(view.pointer),
            has_claimed=tuple(map(without_users, view.has_claimed)),
        )
        recorded = checkpoint.metadata.coordinator_states.get(HISTORY)
        return cls(view, checkpoint_statistics(checkpoint), recorded)

    def without_subtasks(self) -> Self:
        """Return the record without the views of subtasks, which are most of its size."""
        operators = {
            uid: msgspec.structs.replace(operator, subtasks=())
            for uid, operator in self.view.operators.items()
        }
        return replace(self, view=msgspec.structs.replace(self.view, operators=operators))


@dataclass(frozen=True, slots=True)
class JobRecords:
    """The checkpoints of a job that were read.

    Attributes:
        job_id: The job.
        checkpoints: Retained ones that were read, oldest first.
        unread_ids: Ids of retained ones that were not read yet; the newest is never among them.
        unreadable: Retained ones that can't be read, oldest first.
        incomplete: Directories without metadata, oldest first.
        savepoints: The job's savepoints, oldest first.
        unreadable_savepoints: The savepoints that can't be read.
        leftovers: The files that a sweep would delete; the error that stops it; None if the job has no directory, or
            if they were not searched for.
    """

    job_id: str
    checkpoints: Sequence[CheckpointRecord]
    unread_ids: Sequence[int] = ()
    unreadable: Sequence[UnreadableCheckpoint] = ()
    incomplete: Sequence[IncompleteCheckpoint] = ()
    savepoints: Sequence[CheckpointRecord] = ()
    unreadable_savepoints: Sequence[UnreadableCheckpoint] = ()
    leftovers: SweepReport | CheckpointError | None = None

    @classmethod
    def of(cls, history: JobHistory) -> Self:
        return cls(
            job_id=history.job_id,
            checkpoints=list(map(CheckpointRecord.of, history.checkpoints)),
            unreadable=history.unreadable,
            incomplete=history.incomplete,
            savepoints=list(map(CheckpointRecord.of, history.savepoints)),
            unreadable_savepoints=history.unreadable_savepoints,
            leftovers=history.leftovers,
        )

    @property
    def retained_ids(self) -> list[int]:
        """Ids of all completed checkpoints, including those that were not read or can't be."""
        read = (record.view.checkpoint for record in self.checkpoints)
        return with_unreadable((*read, *self.unread_ids), self.unreadable)


@dataclass(frozen=True, slots=True)
class Job:
    """A job.

    Attributes:
        job: Job id.
        query_name: Name of the query in the newest checkpoint; empty if it has none.
        state: `healthy`; `quiet` if the newest checkpoint is far older than the usual interval;
            `attention` if a newer one was started long ago and not completed, or an older one can't
            be read; `damaged` if the newest can't be read; `empty` without checkpoints.
        median_interval_ms: Median time between two checkpoints; None if there are less than three.
        checkpoints: Oldest first.
        failures: Checkpoints that can't be read or were not completed, oldest first.
        gaps: First and last id of each run that is missing between retained checkpoints.
        savepoints: Oldest first.
        unreadable_savepoints: Savepoints that can't be read.
        sweep: The files that a sweep of the job would delete; None if the job has no directory.
        history: Rows of all recorded checkpoints, oldest first; deleted ones included.
        failed_attempts: Rows of recorded attempts, oldest first.
        history_error: Error message if the recorded history can't be read.
    """

    job: str
    query_name: str
    state: str
    median_interval_ms: float | None
    checkpoints: list[CheckpointView]
    failures: list[Failure]
    gaps: list[tuple[int, int]]
    savepoints: list[CheckpointView]
    unreadable_savepoints: list[Failure]
    sweep: Sweep | None
    history: list[dict[str, Any]]
    failed_attempts: list[dict[str, Any]]
    history_error: str

    @property
    def restarts(self) -> list[dict[str, Any]]:
        """The first checkpoint of each driver that took over the job."""
        return [row for row in self.history if row["claims"]]


@dataclass(frozen=True, slots=True)
class Report:
    """All jobs below a directory.

    Attributes:
        directory: URI of the directory, without a user's name.
        savepoint_directory: Another directory that was searched for savepoints, if any.
        made: Time of the report, ISO 8601 in UTC.
        made_ms: The same in milliseconds since 1970.
        made_by: Name and version of this program.
        jobs: Sorted by id.
    """

    directory: str
    savepoint_directory: str | None
    made: str
    made_ms: int
    made_by: str
    jobs: list[Job]


def gather_report(directory: str, savepoint_directory: str | None, *, now_ms: int) -> Report:
    """Gather a report of the jobs below a directory.

    Args:
        directory: URI of the checkpoint directory.
        savepoint_directory: Another directory with savepoints.
        now_ms: The current time, milliseconds since 1970 UTC.

    Raises:
        InvalidRequestError: A directory is not valid.
        CheckpointError: A directory can't be listed.
    """
    histories = job_histories(directory, savepoint_directory=savepoint_directory)
    return Report(
        directory=without_users(directory),
        savepoint_directory=without_users(savepoint_directory) if savepoint_directory else None,
        made=iso_time(now_ms),
        made_ms=now_ms,
        made_by=f"holdfast {version('holdfast')}",
        jobs=[job_of(JobRecords.of(history), now_ms=now_ms) for history in histories],
    )


def without_users(text: str) -> str:
    """Remove names of users from URIs in a text: in some stores they are keys."""
    return _USER.sub("", text)


def job_of(records: JobRecords, *, now_ms: int) -> Job:
    """Return a job, by its records.

    Args:
        records: The checkpoints that were read, and the failures.
        now_ms: The current time, milliseconds since 1970 UTC.
    """
    checkpoints = [record.view for record in records.checkpoints]
    intervals = [
        later.completed_ms - earlier.completed_ms for earlier, later in pairwise(checkpoints)
    ]
    median_interval_ms = median(intervals) if len(intervals) > 1 else None
    retained = records.retained_ids
    recorded, history_error = recorded_history(records)
    failures = [
        *map(_unreadable_failure, records.unreadable),
        *(
            Failure(
                incomplete.checkpoint_id,
                without_users(incomplete.uri),
                "incomplete",
                files=incomplete.files,
                bytes=incomplete.total_bytes,
                modified=iso_time(incomplete.modified_ms) if incomplete.modified_ms else None,
            )
            for incomplete in records.incomplete
        ),
    ]
    return Job(
        job=records.job_id,
        query_name=checkpoints[-1].query_name if checkpoints else "",
        state=_state(records, retained, median_interval_ms, now_ms),
        median_interval_ms=median_interval_ms,
        checkpoints=checkpoints,
        failures=sorted(failures, key=lambda failure: failure.checkpoint or 0),
        gaps=missing_ranges(retained),
        savepoints=[record.view for record in records.savepoints],
        unreadable_savepoints=list(map(_unreadable_failure, records.unreadable_savepoints)),
        sweep=None if records.leftovers is None else sweep_of(records.leftovers),
        history=recorded.checkpoint_rows(
            {*(each.checkpoint for each in checkpoints), *records.unread_ids}
        ),
        failed_attempts=[
            row | {"reason": without_users(row["reason"])} for row in recorded.attempt_rows()
        ],
        history_error=history_error,
    )


def headline(job: Job, now_ms: int) -> str:
    """Return the state of a job in a line for people."""
    newest = job.checkpoints[-1] if job.checkpoints else None
    if newest is None:
        if job.state == "damaged":
            return "no checkpoint can be read"
        has_savepoints = job.savepoints or job.unreadable_savepoints
        return "only savepoints" if has_savepoints else "nothing was completed yet"
    age_ms = now_ms - newest.completed_ms
    ago = f"{span_text(age_ms / 1000)} ago" if age_ms >= 1_000 else "just now"
    last = f"last checkpoint {ago}, {ms_text(newest.duration_ms)}"
    if job.state == "damaged":
        return f"the newest checkpoint can't be read; the last readable one: {ago}"
    if job.state == "quiet" and job.median_interval_ms is not None:
        return f"{last}; before that, one every {ms_text(job.median_interval_ms)}"
    if job.state == "attention":
        unreadable = sum(failure.reason == "unreadable" for failure in job.failures)
        reason = (
            f"{unreadable} older can't be read"
            if unreadable
            else "a newer one was started and not completed"
        )
        return f"{last}; {reason}"
    return last


def recorded_history(records: JobRecords) -> tuple[History, str]:
    """Return the history in the newest readable checkpoint, and the error message if it can't be decoded."""
    statistics = [record.statistics for record in records.checkpoints]
    if not statistics:
        return History(), ""
    place = f"checkpoint {statistics[-1].checkpoint} of job {records.job_id}"
    try:
        return merge_history(records.checkpoints[-1].history, statistics, place), ""
    except CheckpointError as error:
        return History(tuple(statistics)), without_users(str(error))


def _state(
    records: JobRecords, retained: Sequence[int], median_interval_ms: float | None, now_ms: int
) -> str:
    if not retained:
        return "empty"
    newest = records.checkpoints[-1].view if records.checkpoints else None
    if newest is None or newest.checkpoint != retained[-1]:
        return "damaged"
    quiet_after_ms = max(MIN_QUIET_MS, QUIET_FACTOR * (median_interval_ms or 0))
    # A checkpoint that was started a short time ago is probably in progress.
    is_stuck = any(
        now_ms - incomplete.modified_ms > quiet_after_ms
        for incomplete in records.incomplete
        if incomplete.checkpoint_id > newest.checkpoint and incomplete.modified_ms
    )
    if records.unreadable or is_stuck:
        return "attention"
    if median_interval_ms is not None and now_ms - newest.completed_ms > quiet_after_ms:
        return "quiet"
    return "healthy"


def _unreadable_failure(unreadable: UnreadableCheckpoint) -> Failure:
    error = without_users(str(unreadable.error.args[0]))  # without the URI
    return Failure(
        unreadable.checkpoint_id, without_users(unreadable.uri), "unreadable", error=error
    )


def sweep_of(leftovers: SweepReport | CheckpointError) -> Sweep:
    """Return what a sweep would delete, by its report or the error that stops it."""
    if isinstance(leftovers, CheckpointError):
        return Sweep(without_users(str(leftovers)), [], [], 0, 0)
    return Sweep(
        error="",
        files=[
            *(Leftover(without_users(file.uri), file.size) for file in leftovers.files),
            *(Leftover(without_users(upload.uri), None) for upload in leftovers.uploads),
        ],
        directories=list(map(without_users, leftovers.directories)),
        bytes=leftovers.total_bytes,
        within_grace=leftovers.within_grace,
    )
