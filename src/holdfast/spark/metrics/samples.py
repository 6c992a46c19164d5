"""The samples of a completed checkpoint: from its metadata and the reports of its subtasks."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.backends.assignment import AssignedOperator
from holdfast.backends.inspection import states_of
from holdfast.common import json_decoder
from holdfast.errors import CheckpointError
from holdfast.locations.metadata import StoredOperator, SubtaskStatistics
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark.metrics import definitions as d
from holdfast.spark.metrics.values import Sample
from holdfast.spark.subtask import Acknowledgement
from holdfast.spark_progress import OperatorStatistics, checkpoint_statistics, find_progress

Offsets = dict[str, dict[str, int]]
"""Offsets by topic and partition."""

TIMERS = "keyed timers"


@dataclass(frozen=True, slots=True)
class CompletedBatch:
    """A completed checkpoint, with the reports of its subtasks.

    Attributes:
        assigned: The state from which subtasks were restored, by the operator's uid.
        acknowledgements: The reports of the subtasks, by uid; empty if the state of the checkpoint before was reused.
    """

    completed: CompletedCheckpoint
    assigned: Mapping[str, AssignedOperator]
    acknowledgements: Mapping[str, Sequence[Acknowledgement]]


def checkpoint_samples(batch: CompletedBatch) -> Iterator[Sample]:
    """Return the samples of a checkpoint as a whole, and of each operator."""
    metadata = batch.completed.metadata
    job, sizes = (metadata.job_id,), checkpoint_statistics(batch.completed)
    duration_s = metadata.duration_ms / 1000
    yield Sample(d.CHECKPOINTS_COMPLETED, job, 1)
    yield Sample(d.CHECKPOINT_DURATION, job, duration_s)
    yield Sample(d.LAST_DURATION, job, duration_s)
    yield Sample(d.LAST_SIZE, job, sizes.new_bytes)
    yield Sample(d.LAST_FULL_SIZE, job, sizes.new_bytes + sizes.referenced_bytes)
    yield Sample(d.METADATA_SIZE, job, batch.completed.metadata_bytes)
    yield Sample(d.LAST_ID, job, metadata.checkpoint_id)
    yield Sample(d.LAST_COMPLETED, job, metadata.created_ms / 1000)
    if metadata.epoch:
        yield Sample(d.RESTARTS, job, metadata.epoch - 1)
    progress = find_progress(metadata)
    watermark_ms = progress.times[1] if progress else 0
    yield Sample(d.WATERMARK, job, watermark_ms / 1000 if watermark_ms > 0 else None)
    for uid, operator in metadata.operators.items():
        labels = (metadata.job_id, uid)
        yield from _operator_samples(labels, operator, sizes.operators[uid])
        yield from _report_samples(labels, batch.acknowledgements.get(uid, ()))
        if uid in batch.acknowledgements:
            yield from _restored_samples(labels, operator, batch.assigned[uid])


def _operator_samples(
    labels: tuple[str, str], operator: StoredOperator, totals: OperatorStatistics
) -> Iterator[Sample]:
    yield Sample(d.PARALLELISM, labels, totals.parallelism)
    yield Sample(d.ROWS_IN, labels, totals.rows_in)
    yield Sample(d.ROWS_OUT, labels, totals.rows_out)
    yield Sample(d.ROWS_LATE, labels, totals.rows_late)
    yield Sample(d.WRITTEN_BYTES, labels, totals.written_bytes)
    yield Sample(
        d.STATE_BYTES, labels, sum(each.stored_bytes for each in operator.subtasks.values())
    )
    statistics = subtask_statistics(operator)
    if totals.rows_in:
        largest = max(each.rows_in for each in statistics)
        yield Sample(d.SKEW, labels, largest * totals.parallelism / totals.rows_in)
    names: Counter[str] = Counter()
    for each in statistics:
        names.update(each.backend_metrics)
    for name, value in names.items():
        yield Sample(d.BACKEND, (*labels, name), value)


def call_samples(
    job_id: str, process: str, calls: Mapping[str, int], retries: Mapping[str, int]
) -> Iterator[Sample]:
    """Return the samples of calls of stores, by their names."""
    for metric, numbers in ((d.STORE_CALLS, calls), (d.STORE_RETRIES, retries)):
        for call, number in numbers.items():
            yield Sample(metric, (job_id, process, call), number)


def _report_samples(
    labels: tuple[str, str], reports: Sequence[Acknowledgement]
) -> Iterator[Sample]:
    """Return the samples of the subtasks that ran."""
    for report in reports:
        statistics = report.state.statistics
        if statistics is not None:
            for phase, seconds in phases_s(statistics).items():
                yield Sample(_DURATIONS[phase], labels, seconds)
            if statistics.fetch_requests:
                yield Sample(d.FETCHED_BYTES, labels, statistics.fetched_bytes)
                yield Sample(d.FETCH_REQUESTS, labels, statistics.fetch_requests)
                yield Sample(d.FETCH_DURATION, labels, statistics.fetch_ms / 1000)
        yield from call_samples(labels[0], "subtask", report.store_calls, report.store_retries)
    if reports:
        yield Sample(d.WORKER_MEMORY, labels, max(each.worker_bytes for each in reports) or None)
        for domain, timers in zip(
            ("event", "processing"),
            zip(*(each.next_timers for each in reports), strict=True),
            strict=True,
        ):
            earliest = min((timer for timer in timers if timer is not None), default=None)
            value = None if earliest is None else earliest / 1000
            yield Sample(d.NEXT_TIMER, (*labels, domain), value)


def _restored_samples(
    labels: tuple[str, str], operator: StoredOperator, assigned: AssignedOperator
) -> Iterator[Sample]:
    restored: Counter[str] = Counter()
    for index, state in enumerate(assigned.subtasks):
        statistics = operator.subtasks[index].statistics if index in operator.subtasks else None
        if statistics is not None and state.stored_bytes:
            restored[statistics.restored_from or "metadata"] += state.stored_bytes
    for place, size in restored.items():
        yield Sample(d.RESTORED_BYTES, (*labels, place), size)


_DURATIONS = {
    "restore": d.RESTORE_DURATION,
    "process": d.PROCESS_DURATION,
    "store": d.STORE_DURATION,
}


def phases_s(statistics: SubtaskStatistics) -> dict[str, float]:
    """Return the seconds of each phase of a subtask, in order."""
    return {
        "restore": statistics.restore_ms / 1000,
        "process": statistics.process_ms / 1000,
        "store": (statistics.sync_ms + statistics.async_ms) / 1000,
    }


def subtask_samples(completed: CompletedCheckpoint) -> Iterator[Sample]:
    """Return the samples of single subtasks."""
    job_id = completed.metadata.job_id
    for uid, operator in completed.metadata.operators.items():
        for index, state in operator.subtasks.items():
            labels = (job_id, uid, str(index))
            yield Sample(d.SUBTASK_STATE_BYTES, labels, state.stored_bytes)
            if state.statistics is not None:
                yield Sample(d.SUBTASK_ROWS_IN, labels, state.statistics.rows_in)
                for phase, seconds in phases_s(state.statistics).items():
                    yield Sample(d.SUBTASK_DURATION, (*labels, phase), seconds)


def state_samples(completed: CompletedCheckpoint) -> Iterator[Sample]:
    """Return the rows of stored states. Reads manifests of keyed state that are not in `_metadata`."""
    job_id = completed.metadata.job_id
    for uid, operator in completed.metadata.operators.items():
        try:
            elements = [(state.kind, state.elements) for state in states_of(uid, operator)]
        except CheckpointError:  # deleted in the meantime; the next checkpoint is counted
            continue
        rows = sum(count for kind, count in elements if kind != TIMERS)
        timers = sum(count for kind, count in elements if kind == TIMERS)
        yield Sample(d.STATE_ROWS, (job_id, uid), rows)
        yield Sample(d.TIMERS_PENDING, (job_id, uid), timers)


def lag_samples(job_id: str, progress: str | None) -> Iterator[Sample]:
    """Return the lag of each source with partitioned offsets, from the JSON of Spark's progress."""
    for index, source in enumerate(_decode_progress(progress).sources if progress else ()):
        if source.latest and source.end:
            lag = sum(
                latest - source.end.get(topic, {}).get(partition, 0)
                for topic, partitions in source.latest.items()
                for partition, latest in partitions.items()
            )
            yield Sample(d.SOURCE_LAG, (job_id, str(index)), max(0, lag))


class _Source(msgspec.Struct):
    latest_offset: Any = msgspec.field(default=None, name="latestOffset")
    end_offset: Any = msgspec.field(default=None, name="endOffset")

    @property
    def latest(self) -> Offsets | None:
        return _offsets_by_partition(self.latest_offset)

    @property
    def end(self) -> Offsets | None:
        return _offsets_by_partition(self.end_offset)


class _Progress(msgspec.Struct):
    sources: tuple[_Source, ...] = ()


_decode_progress = json_decoder(_Progress).decode


def _offsets_by_partition(offsets: Any) -> Offsets | None:
    """Return the offsets by topic and partition; None if they have another form, as those of other sources."""
    try:
        return msgspec.convert(offsets, Offsets)
    except msgspec.ValidationError:
        return None


def subtask_statistics(operator: StoredOperator) -> list[SubtaskStatistics]:
    """Return the statistics of the subtasks that have recorded them."""
    return [each.statistics for each in operator.subtasks.values() if each.statistics is not None]
