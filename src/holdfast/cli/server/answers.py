"""The answers of the REST API, shaped like those of Flink, with the values of the report and of `holdfast show`."""

from collections.abc import Sequence
from typing import Any, Literal, Self

import msgspec
import numpy as np

from holdfast.cli.report_charts import Figure, job_figures, subtask_figures
from holdfast.cli.report_values import Failure, Job, Sweep, headline, without_users
from holdfast.cli.server.jobs import ServedJob
from holdfast.spark_progress import CheckpointView, OperatorView, SubtaskView

Status = Literal["COMPLETED", "FAILED", "IN_PROGRESS", "UNREADABLE"]

_PERCENTILES = {"p50": 50, "p90": 90, "p95": 95, "p99": 99, "p999": 99.9}


class Errors(msgspec.Struct, frozen=True):
    """Messages of errors."""

    errors: list[str]


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """A job in the list of jobs.

    Attributes:
        id: The job's name in the API.
        job: The job's id.
        name: Name of the query in the newest checkpoint; empty if it has none.
        directory: URI of the checkpoint directory; empty if only savepoints are left.
        state: As in the report: `healthy`, `quiet`, `attention`, `damaged` or `empty`.
        headline: The state in a line for people.
        error: Error of reading the job, or empty.
        checkpoint: Id of the newest readable checkpoint; None without one. So are its other values.
        retained: Number of completed checkpoints.
        median_interval_ms: Median time between two checkpoints.
    """

    id: str
    job: str
    name: str
    directory: str
    state: str
    headline: str
    error: str
    checkpoint: int | None
    completed: str | None
    completed_ms: int | None
    duration_ms: float | None
    new_bytes: int | None
    referenced_bytes: int | None
    rows_in: int | None
    retained: int
    median_interval_ms: float | None

    @classmethod
    def of(cls, served: ServedJob, job: Job, *, now_ms: int) -> Self:
        newest = job.checkpoints[-1] if job.checkpoints else None
        return cls(
            id=served.id,
            job=job.job,
            name=job.query_name,
            directory=without_users(served.directory),
            state=job.state,
            headline=headline(job, now_ms),
            error=served.error,
            checkpoint=newest.checkpoint if newest else None,
            completed=newest.completed if newest else None,
            completed_ms=newest.completed_ms if newest else None,
            duration_ms=newest.duration_ms if newest else None,
            new_bytes=newest.new_bytes if newest else None,
            referenced_bytes=newest.referenced_bytes if newest else None,
            rows_in=newest.rows_in if newest else None,
            retained=len(served.retained_ids),
            median_interval_ms=job.median_interval_ms,
        )


class Directory(msgspec.Struct, frozen=True):
    """A directory that is served, with the error of listing it, if any."""

    uri: str
    error: str


class JobList(msgspec.Struct, frozen=True):
    """All jobs, sorted by `id`."""

    jobs: list[Overview]
    directories: list[Directory]
    made: str
    made_ms: int
    made_by: str


class JobDetails(msgspec.Struct, frozen=True):
    """A job.

    Attributes:
        overview: The job as in the list of jobs.
        figures: Charts of duration, size and rows.
        restarts: The first checkpoint of each driver that took over the job, newest first.
        failed_attempts: Attempts that failed, newest first.
        failures: Checkpoints that can't be read or were not completed.
        gaps: First and last id of each run that is missing between retained checkpoints.
        operators: Parallelism in the newest checkpoint, by operator.
        history_error: Error of reading the recorded history.
    """

    overview: Overview
    figures: list[Figure]
    restarts: list[dict[str, Any]]
    failed_attempts: list[dict[str, Any]]
    failures: list[Failure]
    gaps: list[tuple[int, int]]
    operators: dict[str, int]
    history_error: str

    @classmethod
    def of(cls, served: ServedJob, job: Job, *, now_ms: int) -> Self:
        operators = job.checkpoints[-1].operators if job.checkpoints else {}
        return cls(
            overview=Overview.of(served, job, now_ms=now_ms),
            figures=job_figures(job),
            restarts=job.restarts[::-1],
            failed_attempts=job.failed_attempts[::-1],
            failures=job.failures,
            gaps=job.gaps,
            operators={uid: operator.parallelism for uid, operator in operators.items()},
            history_error=job.history_error,
        )


class Statistics(msgspec.Struct, frozen=True):
    """Distribution of a number."""

    min: float
    max: float
    avg: float
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Return the distribution of at least one value."""
        percentiles = np.percentile(values, list(_PERCENTILES.values()))
        named = dict(zip(_PERCENTILES, percentiles.tolist(), strict=True))
        return cls(min=min(values), max=max(values), avg=float(np.mean(values)), **named)


class CheckpointEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint, an attempt that failed, or a savepoint. Fields are Flink's, the others those of `holdfast list --history --json`.

    Attributes:
        id: Checkpoint id.
        status: `IN_PROGRESS` for the attempt after the newest checkpoint, `UNREADABLE` if its metadata can't be read.
        is_savepoint: Whether it is a savepoint.
        trigger_timestamp: Time of its start, milliseconds since 1970; None if unknown. So are the others.
        latest_ack_timestamp: Time of its completion or failure.
        end_to_end_duration: Milliseconds between them.
        checkpointed_size: Bytes that were written for it.
        state_size: Bytes of all its files.
        num_subtasks: Subtasks of all operators.
        failure_message: Reason of a failure.
        external_path: URI of its directory; None if retention has deleted it.
        is_retained: Whether it still exists.
        restored_checkpoint: The checkpoint that its driver resumed from, if it is the first one of that driver.
    """

    id: int | None
    status: Status
    is_savepoint: bool = False
    trigger_timestamp: int | None = None
    latest_ack_timestamp: int | None = None
    end_to_end_duration: float | None = None
    checkpointed_size: int | None = None
    state_size: int | None = None
    num_subtasks: int | None = None
    failure_message: str = ""
    external_path: str | None = None
    is_retained: bool = True
    batch: int | None = None
    epoch: int | None = None
    rows_in: int | None = None
    rows_late: int | None = None
    rows_out: int | None = None
    restored_checkpoint: int | None = None

    @classmethod
    def of_history(cls, row: dict[str, Any]) -> Self:
        return cls(
            id=row["checkpoint"],
            status="COMPLETED",
            trigger_timestamp=row["completed_ms"] - row["duration_ms"],
            latest_ack_timestamp=row["completed_ms"],
            end_to_end_duration=row["duration_ms"],
            checkpointed_size=row["new_bytes"],
            state_size=row["new_bytes"] + row["referenced_bytes"],
            num_subtasks=sum(each["parallelism"] for each in row["operators"].values()) or None,
            is_retained=row["is_retained"],
            batch=row["batch"],
            epoch=row["epoch"],
            rows_in=row["rows_in"],
            rows_late=row["rows_late"],
            rows_out=row["rows_out"],
            restored_checkpoint=row["restored_checkpoint"],
        )

    @classmethod
    def of_attempt(cls, row: dict[str, Any]) -> Self:
        return cls(
            id=row["checkpoint"],
            status="FAILED",
            trigger_timestamp=round(row["failed_ms"] - row["duration_ms"]),
            latest_ack_timestamp=row["failed_ms"],
            end_to_end_duration=row["duration_ms"],
            failure_message=row["reason"],
            is_retained=False,
            batch=row["batch"],
            epoch=row["epoch"],
        )

    @classmethod
    def of_view(cls, view: CheckpointView) -> Self:
        return cls(
            id=view.checkpoint,
            status="COMPLETED",
            is_savepoint=view.kind == "savepoint",
            trigger_timestamp=round(view.completed_ms - view.duration_ms),
            latest_ack_timestamp=view.completed_ms,
            end_to_end_duration=view.duration_ms,
            checkpointed_size=view.new_bytes,
            state_size=view.total_bytes,
            num_subtasks=sum(each.parallelism for each in view.operators.values()),
            external_path=view.pointer,
            batch=view.batch,
            epoch=view.epoch,
            rows_in=view.rows_in,
            rows_late=view.rows_late,
            rows_out=view.rows_out,
        )

    @classmethod
    def of_failure(cls, failure: Failure, newest: int) -> Self:
        is_unreadable = failure.reason == "unreadable"
        is_newer = (failure.checkpoint or 0) > newest
        return cls(
            id=failure.checkpoint,
            status="UNREADABLE" if is_unreadable else "IN_PROGRESS" if is_newer else "FAILED",
            is_savepoint=failure.checkpoint is None,
            checkpointed_size=None if is_unreadable else failure.bytes,
            failure_message=failure.error or ("" if is_newer else "it was not completed"),
            external_path=failure.pointer,
        )


class Counts(msgspec.Struct, frozen=True):
    """Numbers of checkpoints in the recorded history."""

    restored: int
    total: int
    in_progress: int
    completed: int
    failed: int


class Latest(msgspec.Struct, frozen=True):
    """The newest checkpoint of each type, or None."""

    completed: CheckpointEntry | None
    savepoint: CheckpointEntry | None
    failed: CheckpointEntry | None
    restored: CheckpointEntry | None


class CheckpointHistory(msgspec.Struct, frozen=True):
    """The checkpoints of a job, newest first, with those that retention has deleted and attempts that failed."""

    counts: Counts
    summary: dict[str, Statistics]
    latest: Latest
    history: list[CheckpointEntry]

    @classmethod
    def of(cls, job: Job, *, limit: int) -> Self:
        completed = list(map(CheckpointEntry.of_history, job.history))
        attempts = list(map(CheckpointEntry.of_attempt, job.failed_attempts))
        newest = completed[-1].id or 0 if completed else -1
        others = [CheckpointEntry.of_failure(failure, newest) for failure in job.failures]
        failed = [*attempts, *(entry for entry in others if entry.status != "IN_PROGRESS")]
        restored = [entry for entry in completed if entry.restored_checkpoint is not None]
        savepoints = list(map(CheckpointEntry.of_view, job.savepoints))
        entries = sorted(
            [*completed, *attempts, *others],
            key=lambda entry: (entry.id or 0, entry.latest_ack_timestamp or 0),
        )
        return cls(
            counts=Counts(
                restored=len(restored),
                total=len(entries),
                in_progress=len(attempts) + len(others) - len(failed),
                completed=len(completed),
                failed=len(failed),
            ),
            summary={
                name: Statistics.of([getattr(entry, name) for entry in completed])
                for name in ("checkpointed_size", "state_size", "end_to_end_duration")
                if completed
            },
            latest=Latest(
                completed=completed[-1] if completed else None,
                savepoint=savepoints[-1] if savepoints else None,
                failed=failed[-1] if failed else None,
                restored=restored[-1] if restored else None,
            ),
            history=entries[::-1][:limit],
        )


class Task(msgspec.Struct, frozen=True):
    """An operator in a checkpoint: totals of its subtasks."""

    id: str
    num_subtasks: int
    state_size: int
    checkpointed_size: int | None
    rows_in: int | None
    rows_late: int | None
    rows_out: int | None


class CheckpointDetails(msgspec.Struct, frozen=True):
    """A checkpoint.

    Attributes:
        checkpoint: The checkpoint as in the history.
        tasks: Its operators.
        content: The output of `holdfast show --json`, without `subtasks`; None if it can't be read.
    """

    checkpoint: CheckpointEntry
    tasks: dict[str, Task]
    content: dict[str, Any] | None


class SubtaskDetails(msgspec.Struct, frozen=True):
    """The subtasks of an operator in a checkpoint.

    Attributes:
        id: The operator's uid.
        checkpoint: Checkpoint id.
        num_subtasks: Number of subtasks.
        max_parallelism: Number of key groups.
        key: Columns of the key.
        summary: Distribution of each number over the subtasks.
        skew: Maximum divided by the mean, of each number; 1 if all subtasks are equal.
        figures: Charts of state, rows and times.
        subtasks: The subtasks, as in `holdfast show --json`.
    """

    id: str
    checkpoint: int
    num_subtasks: int
    max_parallelism: int
    key: tuple[str, ...]
    summary: dict[str, Statistics]
    skew: dict[str, float]
    figures: list[Figure]
    subtasks: tuple[SubtaskView, ...]

    @classmethod
    def of(cls, uid: str, checkpoint: int, operator: OperatorView) -> Self:
        names = [name for name in SubtaskView.__struct_fields__ if name.endswith(("_bytes", "_ms"))]
        values = {
            name: [getattr(subtask, name) or 0 for subtask in operator.subtasks]
            for name in ("rows_in", "rows_late", "rows_out", *names)
        }
        summary = {name: Statistics.of(each) for name, each in values.items() if each}
        return cls(
            id=uid,
            checkpoint=checkpoint,
            num_subtasks=operator.parallelism,
            max_parallelism=operator.max_parallelism,
            key=operator.key,
            summary=summary,
            skew={
                name: round(each.max / each.avg, 3) for name, each in summary.items() if each.avg
            },
            figures=subtask_figures(operator.subtasks),
            subtasks=operator.subtasks,
        )


class Config(msgspec.Struct, frozen=True):
    """Settings of checkpoints, as far as the checkpoints of a job show them.

    Attributes:
        mode: Always `exactly_once`.
        interval: Median milliseconds between two checkpoints; None if there are less than three.
        num_retained: Number of completed checkpoints that exist.
        checkpoint_storage: Always `filesystem`.
        directory: URI of the checkpoint directory.
        writer: Program that wrote the newest checkpoint.
    """

    mode: str
    interval: float | None
    num_retained: int
    checkpoint_storage: str
    directory: str
    writer: str | None


class Savepoints(msgspec.Struct, frozen=True):
    """The savepoints of a job, newest first, with those that can't be read at the end."""

    savepoints: list[CheckpointEntry]


class SweepAnswer(msgspec.Struct, frozen=True):
    """The files that a sweep would delete: nothing is deleted.

    Attributes:
        sweep: The files; None if the job has no directory.
        grace_s: The grace period, by the clock of this server.
    """

    sweep: Sweep | None
    grace_s: float
