"""Gathers what a report shows from the checkpoints below a directory."""

import re
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from itertools import pairwise
from statistics import median

import msgspec

from holdfast.cli.output import time_text
from holdfast.cli.report.data import (
    Checkpoint,
    Failure,
    GivenUp,
    Job,
    Leftover,
    RememberedCheckpoint,
    RememberedOperator,
    Report,
    ReportedOperator,
    Subtask,
    Sweep,
)
from holdfast.errors import CheckpointError
from holdfast.locations.coordination import (
    JobHistory,
    SweepReport,
    UnreadableCheckpoint,
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
            for begun in history.incomplete
        ),
    ]
    return Job(
        job=history.job_id,
        query_name=_query_name(history.checkpoints),
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


def _query_name(checkpoints: Sequence[CompletedCheckpoint]) -> str:
    """Return the name of the query, or nothing if the newest checkpoint is not one of Spark's."""
    try:
        return progress_of(checkpoints[-1].metadata).query_name if checkpoints else ""
    except CheckpointError:
        return ""


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
        for begun in history.incomplete
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
        rows_in=max(
            (
                rows
                for operator in operators
                if (rows := _total(subtask.rows_in for subtask in operator.subtasks)) is not None
            ),
            default=None,
        ),
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


def _unreadable(unreadable: UnreadableCheckpoint) -> Failure:
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
        too_young=leftovers.within_grace,
    )


def _time(ms: int) -> str:
    try:
        return time_text(ms)
    except (OverflowError, ValueError, OSError):  # a clock that was far off
        return "unknown"
