"""The report of a subtask whose part of a checkpoint is written, and which reports of a batch are valid.

A sink may read a few rows before it reads all of them, which runs some subtasks twice, and Spark may retry tasks. The
driver only gets reports, in no particular order. Those of the pass that the sink wrote are valid.
"""

from collections.abc import Iterable

import msgspec

from holdfast.backends.assignment import AssignedOperator
from holdfast.common import message_pack_decoder
from holdfast.errors import CheckpointDeclinedError
from holdfast.locations.metadata import StoredOperator, StoredSubtask
from holdfast.spark.operators import Operator

COLUMN = "__holdfast_acknowledgement"
"""Name of the binary column for acknowledgements among the rows of the output; null in rows of data."""


class Acknowledgement(msgspec.Struct, frozen=True):
    """The report of a subtask.

    Attributes:
        task_attempt_id: Spark's number of the task attempt, unique in the application.
        checkpoint_id: The checkpoint. A sink may read rows of an earlier batch, which runs the subtasks
            of that batch again.
        stage_id: Spark's number of the task's stage. All subtasks of one pass over the rows are in
            one stage, if the pass is a single job.
        next_timers: The earliest remaining timers of event time and of processing time, in
            milliseconds since 1970; None if there is no such timer.
        start_ms: Time of the subtask's start by its executor's clock, in milliseconds since 1970; 0 if unknown.
        worker_bytes: Peak resident memory of the Python worker so far; 0 if unknown.
        store_calls: Number of calls of stores by their names.
        store_retries: Number of those that repeated a failed one.
    """

    subtask: int
    task_attempt_id: int
    state: StoredSubtask
    checkpoint_id: int
    stage_id: int = -1
    next_timers: tuple[int | None, int | None] = (None, None)
    start_ms: int = 0
    worker_bytes: int = 0
    store_calls: dict[str, int] = {}
    store_retries: dict[str, int] = {}

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)


_DECODER = message_pack_decoder(Acknowledgement)


def decode_acknowledgements(encoded: Iterable[bytes]) -> list[Acknowledgement]:
    """Decode reports, which are in no particular order."""
    return [_DECODER.decode(report) for report in encoded]


def combine_acknowledgements(
    operator: Operator,
    acknowledgements: list[Acknowledgement],
    assigned: AssignedOperator,
    key_types: tuple[str, ...],
) -> StoredOperator:
    """Combine the reports of all subtasks of an operator into its state, with Spark's types of the columns of its key.

    Raises:
        CheckpointDeclinedError: A subtask is missing, or has reported twice: then rows were processed
            twice, and it is unknown which output the sink has written.
    """
    uid = operator.uid
    subtasks = {report.subtask: report.state for report in acknowledgements}
    if len(subtasks) < len(acknowledgements):
        raise CheckpointDeclinedError(
            f"subtasks of operator {uid!r} reported more than once, because Spark ran a part of "
            "the sink's job again. If an executor was lost, restart the query, which repeats the "
            "batch; else the sink needs persist=True"
        )
    missing = sorted(set(range(assigned.parallelism)) - set(subtasks))
    if missing:
        raise CheckpointDeclinedError(
            f"subtasks {missing} of operator {uid!r} did not report: the sink's first action failed, or "
            "read only some rows. Read all rows in one action, or use persist=True"
        )
    return StoredOperator(
        parallelism=assigned.parallelism,
        max_parallelism=assigned.max_parallelism,
        subtasks=dict(sorted(subtasks.items())),
        key=operator.key,
        key_hash=operator.key_hash,
        key_types=key_types,
    )


def has_duplicate_reports(acknowledgements: list[Acknowledgement]) -> bool:
    """Return whether a subtask has ended twice in one stage."""
    seen = {(report.stage_id, report.subtask) for report in acknowledgements}
    return len(seen) < len(acknowledgements)


def reports_of_final_pass(
    acknowledgements: list[Acknowledgement], parallelism: int
) -> list[Acknowledgement] | None:
    """Return the reports of the only pass in which all rows were read; None without one, or with several candidates.

    A sink may have read a prefix of the rows before; some subtasks may have ended then, or all of them, if none of
    them yields rows. Reports after the pass can be of rows that were lost from a cache and computed again for the sink.
    """
    all_subtasks = set(range(parallelism))
    stages: dict[int, list[Acknowledgement]] = {}
    for report in acknowledgements:
        stages.setdefault(report.stage_id, []).append(report)
    passes = [reports for reports in stages.values() if _subtasks(reports) == all_subtasks]
    if not passes:
        passes = [acknowledgements]  # possibly a separate job computed each partition
    while len(passes) > 1 and not any(map(_has_output, passes[0])):
        del passes[0]
    reports = passes[0]
    if len(passes) > 1 or len(reports) != parallelism or _subtasks(reports) != all_subtasks:
        return None
    first_attempt = min(report.task_attempt_id for report in reports)
    others = [report for report in acknowledgements if report not in reports]
    is_prefix = all(report.task_attempt_id < first_attempt for report in others)
    is_partial = _subtasks(others) != all_subtasks or not any(map(_has_output, others))
    return reports if is_prefix and is_partial else None


def _subtasks(reports: list[Acknowledgement]) -> set[int]:
    return {report.subtask for report in reports}


def _has_output(report: Acknowledgement) -> bool:
    return report.state.statistics is None or report.state.statistics.rows_out > 0
