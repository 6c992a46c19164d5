"""The spans of checkpoints and of the starts of runs, as values. Names of attributes are Flink's.

    JobInitialization          the first batch of a run, until state is assigned
    ├─ ReadMetadata            checkpoints are read, and the job is claimed
    └─ AssignState
    Checkpoint                 a batch, from its start to its commit
    ├─ Subtask                 by the clock of its executor
    │  ├─ Restore
    │  ├─ Process
    │  └─ Store
    └─ Commit                  after the last subtask has reported

Source:
    Flink, CheckpointStatsTracker. `Checkpoint_Subtask` of Flink is `Subtask` here, and its `jobVertexId` is `operator`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.locations.metadata import SubtaskStatistics
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark.metrics.samples import CompletedBatch, phases_s, subtask_statistics
from holdfast.spark.subtask import Acknowledgement
from holdfast.spark_progress import checkpoint_statistics, find_progress

Attributes = Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True)
class SpanTree:
    """A span with its children. Times are milliseconds since 1970; `error` is empty if it succeeded."""

    name: str
    start_ms: float
    end_ms: float
    attributes: Attributes
    children: tuple["SpanTree", ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Initialization:
    """The start of a run, by the driver's clock.

    Attributes:
        start_ms: Time at its start, in milliseconds since 1970.
        read_ms: Duration in which checkpoints were read and the job was claimed.
        assign_ms: Duration in which state was assigned.
        restored: The checkpoint from which state is restored, or None.
    """

    job_id: str
    start_ms: float
    read_ms: float
    assign_ms: float
    restored: CompletedCheckpoint | None

    @property
    def duration_s(self) -> float:
        return (self.read_ms + self.assign_ms) / 1000


@dataclass(frozen=True, slots=True)
class FailedCheckpoint:
    """A checkpoint that failed; `reason` is bounded, `message` is for people and has no secrets."""

    job_id: str
    checkpoint_id: int
    failed_ms: float
    duration_ms: float
    reason: str
    message: str = field(default="", compare=False)


def initialization_span(run: Initialization) -> SpanTree:
    """Return the span of a run's start."""
    attributes: dict[str, str | int | float] = {
        "jobId": run.job_id,
        "initializationStatus": "COMPLETED",
        "maxReadMetadataDurationMs": run.read_ms,
        "maxAssignStateDurationMs": run.assign_ms,
    }
    if run.restored is not None:
        attributes["checkpointId"] = run.restored.checkpoint_id
        attributes["fullSize"] = run.restored.metadata.state_bytes
    read_end_ms = run.start_ms + run.read_ms
    end_ms = read_end_ms + run.assign_ms
    children = (
        SpanTree("ReadMetadata", run.start_ms, read_end_ms, {"jobId": run.job_id}),
        SpanTree("AssignState", read_end_ms, end_ms, {"jobId": run.job_id}),
    )
    return SpanTree("JobInitialization", run.start_ms, end_ms, attributes, children)


def checkpoint_span(batch: CompletedBatch) -> SpanTree:
    """Return the span of a completed checkpoint."""
    metadata = batch.completed.metadata
    sizes = checkpoint_statistics(batch.completed)
    start_ms = metadata.created_ms - metadata.duration_ms
    subtasks = tuple(
        _subtask_span(uid, report, report.state.statistics)
        for uid, reports in batch.acknowledgements.items()
        for report in reports
        if report.state.statistics is not None and report.start_ms
    )
    all_statistics = [
        statistics
        for operator in metadata.operators.values()
        for statistics in subtask_statistics(operator)
    ]
    attributes: dict[str, str | int | float] = {
        "jobId": metadata.job_id,
        "checkpointId": metadata.checkpoint_id,
        "checkpointStatus": "COMPLETED",
        "checkpointType": "Checkpoint",
        "checkpointedSize": sizes.new_bytes,
        "fullSize": sizes.new_bytes + sizes.referenced_bytes,
        "metadataSize": batch.completed.metadata_bytes,
        "rowsIn": sizes.rows_in,
        "rowsOut": sizes.rows_out,
        "rowsLate": sizes.rows_late,
    }
    if progress := find_progress(metadata):
        attributes["batchId"] = progress.batch_id
        attributes["queryId"] = progress.query_id
        attributes["runId"] = progress.run_id
    for name in ("restore", "process", "sync", "async"):
        durations_ms = [getattr(each, f"{name}_ms") for each in all_statistics]
        title = _DURATION_NAMES[name]
        attributes[f"max{title}DurationMs"] = max(durations_ms, default=0.0)
        attributes[f"sum{title}DurationMs"] = sum(durations_ms, 0.0)
    children = subtasks
    if subtasks:
        # The executors' clocks may be ahead of the driver's.
        written_ms = min(max(each.end_ms for each in subtasks), metadata.created_ms)
        commit = SpanTree("Commit", written_ms, metadata.created_ms, {"jobId": metadata.job_id})
        children = (*subtasks, commit)
    return SpanTree("Checkpoint", start_ms, metadata.created_ms, attributes, children)


_DURATION_NAMES = {
    "restore": "RestoreState",
    "process": "Process",
    "sync": "SyncCheckpoint",
    "async": "AsyncCheckpoint",
}


def _subtask_span(uid: str, report: Acknowledgement, statistics: SubtaskStatistics) -> SpanTree:
    attributes: dict[str, str | int | float] = {
        "operator": uid,
        "subtaskId": report.subtask,
        "taskAttemptId": report.task_attempt_id,
        "checkpointId": report.checkpoint_id,
        "rowsIn": statistics.rows_in,
        "rowsOut": statistics.rows_out,
        "checkpointedSize": statistics.state_bytes,
        "restoredFrom": statistics.restored_from,
        "fetchedBytes": statistics.fetched_bytes,
    }
    for prefix, numbers in (
        ("storeCalls", report.store_calls),
        ("storeRetries", report.store_retries),
    ):
        attributes.update({f"{prefix}.{call}": number for call, number in numbers.items()})
    phases = []
    at_ms = float(report.start_ms)
    for phase, seconds in phases_s(statistics).items():
        end_ms = at_ms + 1000 * seconds
        phases.append(SpanTree(phase.capitalize(), at_ms, end_ms, {}))
        at_ms = end_ms
    return SpanTree("Subtask", report.start_ms, at_ms, attributes, tuple(phases))


def failure_span(failed: FailedCheckpoint) -> SpanTree:
    """Return the span of a checkpoint that failed."""
    attributes: dict[str, str | int | float] = {
        "jobId": failed.job_id,
        "checkpointId": failed.checkpoint_id,
        "checkpointStatus": "FAILED",
        "checkpointType": "Checkpoint",
        "reason": failed.reason,
    }
    start_ms = failed.failed_ms - failed.duration_ms
    return SpanTree("Checkpoint", start_ms, failed.failed_ms, attributes, error=failed.message)
