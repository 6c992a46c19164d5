"""The values that the report shows: the page and the JSON are made of them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from statistics import median

import msgspec

from holdfast.cli.output import time_text
from holdfast.errors import CheckpointError
from holdfast.locations.coordination import (
    JobHistory,
    SweepReport,
    Unreadable,
    job_histories,
    size_of,
)
from holdfast.locations.handles import StreamStateHandle
from holdfast.locations.metadata import CheckpointMetadata, StoredOperator, StoredSubtask
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark_progress import Past, all_streams, figures_of, past_of, progress_of

_USER = re.compile(r"(?<=://)[^/@\s]*@")

QUIET_FACTOR, QUIET_LEAST_MS = 10, 60_000
"""A job is quiet when its newest checkpoint is older than this many times their usual distance."""


@dataclass(frozen=True, slots=True)
class Subtask:
    """One subtask's part of a checkpoint; None stands for what nobody has counted.

    Attributes:
        subtask: The subtask's index.
        stored_bytes: Length of its state, in files and inline.
        rows_in: Rows given to the operator.
        rows_late: Rows dropped before it because they came too late.
        rows_out: Rows that it gave on.
        restore_ms: Time to read the state that it began with, milliseconds.
        process_ms: Time in the operator's own code, milliseconds.
        snapshot_ms: Time to write its state, milliseconds.
        restored_from: Where it found its state: `worker`, `local`, `storage`, or empty.
        backend_metrics: What the backend of its keyed state said of itself, by that backend's names.
    """

    subtask: int
    stored_bytes: int
    rows_in: int | None
    rows_late: int | None
    rows_out: int | None
    restore_ms: float | None
    process_ms: float | None
    snapshot_ms: float | None
    restored_from: str
    backend_metrics: dict[str, int]


@dataclass(frozen=True, slots=True)
class ReportedOperator:
    """One operator's part of a checkpoint."""

    uid: str
    parallelism: int
    max_parallelism: int
    key: list[str]
    subtasks: list[Subtask]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A completed checkpoint or savepoint.

    Attributes:
        checkpoint: The checkpoint's id.
        pointer: URI of its directory, without a user's name.
        batch: The micro-batch of Spark that it completes; None if it is not one of Spark's.
        completed: When, by the driver's clock, ISO 8601 in UTC.
        completed_ms: The same in milliseconds since 1970.
        duration_ms: From its beginning to its completion, milliseconds.
        writer: Name and version of the program that wrote it.
        new_bytes: As in `CheckpointSize`.
        referenced_bytes: The same.
        total_bytes: The same.
        metadata_bytes: Length of `_metadata`, which is among the new bytes.
        rows_in: The rows that all operators together were given; None if nobody has counted.
        rows_late: The same.
        rows_out: The same.
        operators: By uid, sorted.
    """

    checkpoint: int
    pointer: str
    batch: int | None
    completed: str
    completed_ms: int
    duration_ms: float
    writer: str
    new_bytes: int
    referenced_bytes: int
    total_bytes: int
    metadata_bytes: int
    rows_in: int | None
    rows_late: int | None
    rows_out: int | None
    operators: list[ReportedOperator]


@dataclass(frozen=True, slots=True)
class Failure:
    """A checkpoint or savepoint that can't be read or was not completed.

    Attributes:
        checkpoint: The checkpoint's id; None for a savepoint.
        pointer: URI of its directory, without a user's name.
        reason: `unreadable`, or `uncommitted` for a directory without metadata.
        error: Why it can't be read, else empty.
        files: Number of files in an uncommitted one.
        bytes: Length of these files.
        modified: When something was last written to it, ISO 8601 in UTC; None if not known.
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
    """A file or upload that a sweep would delete; an upload that was begun has no length."""

    uri: str
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Sweep:
    """The files that a sweep would delete.

    Attributes:
        error: Why nothing can be said, and nothing would be deleted; else empty.
        files: Files and unfinished uploads.
        directories: URIs of directories.
        bytes: Length of the files.
        too_young: Number of files that nothing leads to, but that somebody may still be writing.
    """

    error: str
    files: list[Leftover]
    directories: list[str]
    bytes: int
    too_young: int


@dataclass(frozen=True, slots=True)
class RememberedOperator:
    """What an operator's subtasks did for a checkpoint that may be there no more, together."""

    uid: str
    parallelism: int
    rows_in: int
    rows_late: int
    rows_out: int
    written_bytes: int
    process_ms: int
    restored_from: str


@dataclass(frozen=True, slots=True)
class RememberedCheckpoint:
    """A completed checkpoint, as those behind it remember it.

    Attributes:
        checkpoint: The checkpoint's id.
        batch: The micro-batch of Spark that it completes; None if it is not one of Spark's.
        completed: When, by the driver's clock, ISO 8601 in UTC.
        duration_ms: From its beginning to its completion, milliseconds.
        epoch: Number of the claim under which it was committed.
        new_bytes: As in `CheckpointSize`.
        referenced_bytes: The same.
        rows_in: The rows that all operators together were given.
        rows_late: The same.
        rows_out: The same.
        operators: By uid, sorted; empty where there was no room to remember them.
        is_retained: Whether it is still there, and can be read.
        restored_checkpoint: The checkpoint that its driver went on from, if this is the first that the driver
            completed, and another one had completed those before; else None.
        claims: Number of claims to the job since that checkpoint, 0 if there was none.
    """

    checkpoint: int
    batch: int | None
    completed: str
    duration_ms: int
    epoch: int
    new_bytes: int
    referenced_bytes: int
    rows_in: int
    rows_late: int
    rows_out: int
    operators: list[RememberedOperator]
    is_retained: bool
    restored_checkpoint: int | None
    claims: int


@dataclass(frozen=True, slots=True)
class GivenUp:
    """An attempt at a checkpoint that failed, and was cleaned up.

    Attributes:
        checkpoint: The id that it would have got.
        batch: The micro-batch of Spark.
        epoch: Number of the driver's claim.
        given_up: When, ISO 8601 in UTC.
        duration_ms: How long it had taken until then, milliseconds.
        reason: Why.
    """

    checkpoint: int
    batch: int
    epoch: int
    given_up: str
    duration_ms: float
    reason: str


@dataclass(frozen=True, slots=True)
class Job:
    """One job.

    Attributes:
        job: The job's id.
        state: `healthy`; `quiet`, if the newest checkpoint is far older than their usual distance;
            `attention`, if a newer one was begun long ago and not completed, or an older one can't
            be read; `damaged`, if the newest can't be read; `empty`, if there is none.
        usual_distance_ms: Median time between one checkpoint and the next; None for less than three.
        checkpoints: Oldest first.
        failures: Checkpoints that can't be read or were not completed, oldest first.
        gaps: First and last id of each run that is missing between retained ones.
        savepoints: Oldest first.
        unreadable_savepoints: The savepoints that can't be read.
        sweep: The files that a sweep of the job would delete; None if the job has no directory.
        history: All completed checkpoints that are remembered, oldest first; also those that are deleted.
        given_up: Attempts that are remembered, oldest first.
        history_error: Why not more is remembered; else empty.
    """

    job: str
    state: str
    usual_distance_ms: float | None
    checkpoints: list[Checkpoint]
    failures: list[Failure]
    gaps: list[tuple[int, int]]
    savepoints: list[Checkpoint]
    unreadable_savepoints: list[Failure]
    sweep: Sweep | None
    history: list[RememberedCheckpoint]
    given_up: list[GivenUp]
    history_error: str

    @property
    def restarts(self) -> list[RememberedCheckpoint]:
        """The first checkpoint of each driver that took the job over."""
        return [past for past in self.history if past.claims]


@dataclass(frozen=True, slots=True)
class Report:
    """All jobs below a directory.

    Attributes:
        directory: The directory's URI, without a user's name.
        savepoint_directory: The directory that was searched for savepoints, if any.
        made: When, ISO 8601 in UTC.
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


def report_of(directory: str, savepoint_directory: str | None, *, now_ms: int) -> Report:
    """Look at a directory.

    Args:
        directory: URI of the checkpoint directory.
        savepoint_directory: Another one to look for savepoints in.
        now_ms: The time, milliseconds since 1970 UTC.

    Raises:
        InvalidRequestError: A directory can't be used.
        CheckpointError: A directory can't be listed.
    """
    histories = job_histories(directory, savepoint_directory=savepoint_directory)
    return Report(
        directory=public_text(directory),
        savepoint_directory=public_text(savepoint_directory) if savepoint_directory else None,
        made=_time(now_ms),
        made_ms=now_ms,
        made_by=f"holdfast {version('holdfast')}",
        jobs=[_job(history, now_ms) for history in histories],
    )


def public_text(text: str) -> str:
    """A URI, or a text with URIs in it, without names of users: on some stores those are keys."""
    return _USER.sub("", text)


def _job(history: JobHistory, now_ms: int) -> Job:
    checkpoints = [_checkpoint(checkpoint) for checkpoint in history.checkpoints]
    distances = [
        later.completed_ms - earlier.completed_ms for earlier, later in pairwise(checkpoints)
    ]
    usual = median(distances) if len(distances) > 1 else None
    past, history_error = _remembered(history)
    failures = [
        *(_unreadable(unreadable) for unreadable in history.unreadable),
        *(
            Failure(
                begun.checkpoint_id,
                public_text(begun.uri),
                "uncommitted",
                files=begun.files,
                bytes=begun.total_bytes,
                modified=_time(begun.modified_ms) if begun.modified_ms else None,
            )
            for begun in history.uncommitted
        ),
    ]
    return Job(
        job=history.job_id,
        state=_state(history, usual, now_ms),
        usual_distance_ms=usual,
        checkpoints=checkpoints,
        failures=sorted(failures, key=lambda failure: failure.checkpoint or 0),
        gaps=history.gaps,
        savepoints=[_checkpoint(savepoint) for savepoint in history.savepoints],
        unreadable_savepoints=[
            _unreadable(unreadable) for unreadable in history.unreadable_savepoints
        ],
        sweep=None if history.leftovers is None else _sweep(history.leftovers),
        history=_past(past, history),
        given_up=[
            GivenUp(
                attempt.checkpoint,
                attempt.batch,
                attempt.epoch,
                _time(attempt.given_up_ms),
                attempt.duration_ms,
                public_text(attempt.reason),
            )
            for attempt in past.given_up
        ],
        history_error=history_error,
    )


def _remembered(history: JobHistory) -> tuple[Past, str]:
    """The history in the newest checkpoint that can be read; and why not, if it can't be read."""
    try:
        return past_of(history.checkpoints), ""
    except CheckpointError as error:
        return Past(tuple(map(figures_of, history.checkpoints))), public_text(str(error))


def _past(past: Past, history: JobHistory) -> list[RememberedCheckpoint]:
    retained = {checkpoint.checkpoint_id for checkpoint in history.checkpoints}
    restarts = {restart.checkpoint: restart for restart in past.restarts}
    return [
        RememberedCheckpoint(
            checkpoint=figures.checkpoint,
            batch=figures.batch,
            completed=_time(figures.completed_ms),
            duration_ms=figures.duration_ms,
            epoch=figures.epoch,
            new_bytes=figures.new_bytes,
            referenced_bytes=figures.referenced_bytes,
            rows_in=figures.rows_in,
            rows_late=figures.rows_late,
            rows_out=figures.rows_out,
            operators=[
                RememberedOperator(uid, **msgspec.structs.asdict(operator))
                for uid, operator in sorted(figures.operators.items())
            ],
            is_retained=figures.checkpoint in retained,
            restored_checkpoint=restart.restored_checkpoint if restart else None,
            claims=restart.claims if restart else 0,
        )
        for figures in past.checkpoints
        for restart in [restarts.get(figures.checkpoint)]
    ]


def _state(history: JobHistory, usual_ms: float | None, now_ms: int) -> str:
    retained = history.retained_ids
    if not retained:
        return "empty"
    newest = history.checkpoints[-1].metadata if history.checkpoints else None
    if newest is None or newest.checkpoint_id != retained[-1]:
        return "damaged"
    quiet_after_ms = max(QUIET_LEAST_MS, QUIET_FACTOR * (usual_ms or 0))
    begun_ms = [
        begun.modified_ms
        for begun in history.uncommitted
        if begun.checkpoint_id > newest.checkpoint_id and begun.modified_ms
    ]
    # What was begun just now goes on, as far as one can tell.
    if history.unreadable or any(now_ms - modified_ms > quiet_after_ms for modified_ms in begun_ms):
        return "attention"
    if usual_ms is not None and now_ms - newest.created_ms > quiet_after_ms:
        return "quiet"
    return "healthy"


def _checkpoint(completed: CompletedCheckpoint) -> Checkpoint:
    metadata = completed.metadata
    size = size_of(completed, _streams(completed))
    operators = [_operator(uid, state) for uid, state in sorted(metadata.operators.items())]
    subtasks = [subtask for operator in operators for subtask in operator.subtasks]
    return Checkpoint(
        checkpoint=metadata.checkpoint_id,
        pointer=public_text(completed.location.external_pointer),
        batch=_batch_of(metadata),
        completed=_time(metadata.created_ms),
        completed_ms=metadata.created_ms,
        duration_ms=metadata.duration_ms,
        writer=metadata.writer,
        new_bytes=size.new_bytes,
        referenced_bytes=size.referenced_bytes,
        total_bytes=size.total_bytes,
        metadata_bytes=completed.metadata_bytes,
        rows_in=_total(subtask.rows_in for subtask in subtasks),
        rows_late=_total(subtask.rows_late for subtask in subtasks),
        rows_out=_total(subtask.rows_out for subtask in subtasks),
        operators=operators,
    )


def _total(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _streams(completed: CompletedCheckpoint) -> list[StreamStateHandle]:
    """All streams that the checkpoint leads to; without Spark's files if their list can't be read."""
    try:
        return all_streams(completed)
    except CheckpointError:
        return completed.metadata.streams()


def _batch_of(metadata: CheckpointMetadata) -> int | None:
    """The micro-batch; None if the checkpoint is not one of Spark's, which is no failure of the page."""
    try:
        return progress_of(metadata).batch_id
    except CheckpointError:
        return None


def _operator(uid: str, state: StoredOperator) -> ReportedOperator:
    return ReportedOperator(
        uid=uid,
        parallelism=state.parallelism,
        max_parallelism=state.max_parallelism,
        key=list(state.key),
        subtasks=[_subtask(index, subtask) for index, subtask in sorted(state.subtasks.items())],
    )


def _subtask(index: int, state: StoredSubtask) -> Subtask:
    did = state.statistics
    return Subtask(
        subtask=index,
        stored_bytes=state.stored_bytes,
        rows_in=did.rows_in if did else None,
        rows_late=did.rows_late if did else None,
        rows_out=did.rows_out if did else None,
        restore_ms=did.restore_ms if did else None,
        process_ms=did.process_ms if did else None,
        snapshot_ms=did.sync_ms + did.async_ms if did else None,
        restored_from=did.restored_from if did else "",
        backend_metrics=did.backend_metrics if did else {},
    )


def _unreadable(unreadable: Unreadable) -> Failure:
    # The message without the place, which stands beside it.
    error = public_text(str(unreadable.error.args[0]))
    return Failure(unreadable.checkpoint_id, public_text(unreadable.uri), "unreadable", error=error)


def _sweep(leftovers: SweepReport | CheckpointError) -> Sweep:
    if isinstance(leftovers, CheckpointError):
        return Sweep(public_text(str(leftovers)), [], [], 0, 0)
    return Sweep(
        error="",
        files=[
            *(Leftover(public_text(file.uri), file.size) for file in leftovers.files),
            *(Leftover(public_text(upload.uri), None) for upload in leftovers.uploads),
        ],
        directories=[public_text(directory) for directory in leftovers.directories],
        bytes=leftovers.total_bytes,
        too_young=leftovers.too_young,
    )


def _time(ms: int) -> str:
    try:
        return time_text(ms)
    except (OverflowError, ValueError, OSError):  # a clock that was far off
        return "unknown"
