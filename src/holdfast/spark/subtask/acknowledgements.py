"""What a subtask reports when its part of a checkpoint is written."""

from collections.abc import Iterable

import msgspec

from holdfast.errors import CheckpointDeclinedError
from holdfast.locations.metadata import OperatorState, SubtaskState
from holdfast.spark.operators import Operator

COLUMN = "__holdfast_acknowledgement"
"""Name of the binary column that carries acknowledgements, where they come as rows of their own;
null in rows of data."""


class Acknowledgement(msgspec.Struct, frozen=True):
    """One subtask's report.

    Attributes:
        subtask: Its index.
        task_attempt_id: Spark's number of the task attempt, unique in the application.
        state: Its state in the checkpoint.
        checkpoint_id: The checkpoint. A sink may read rows of an earlier batch, which runs its
            subtasks once more.
        stage_id: Spark's number of the task's stage. All subtasks of one pass over the rows are in
            one stage, if one job makes the pass.
    """

    subtask: int
    task_attempt_id: int
    state: SubtaskState
    checkpoint_id: int
    stage_id: int = -1

    def encode(self) -> bytes:
        """Its bytes, as they travel to the driver."""
        return msgspec.msgpack.encode(self)


def decode_acknowledgements(encoded: Iterable[bytes]) -> list[Acknowledgement]:
    """The reports as they arrived, in no particular order."""
    decoder = msgspec.msgpack.Decoder(Acknowledgement)
    return [decoder.decode(one) for one in encoded]


def is_doubled(acknowledgements: list[Acknowledgement]) -> bool:
    """Whether a subtask came to its end twice in one stage."""
    seen = {(one.stage_id, one.subtask) for one in acknowledgements}
    return len(seen) < len(acknowledgements)


def of_the_pass(
    acknowledgements: list[Acknowledgement], parallelism: int
) -> list[Acknowledgement] | None:
    """The reports of the one pass in which all rows were read.

    Glimpses before it are passes of their own, of which some subtasks may have come to their end;
    all, if none of them had a row to show. What comes behind it can be rows that were lost from a
    cache and computed anew, for the sink.

    Args:
        acknowledgements: All reports of a batch.
        parallelism: Number of subtasks.

    Returns:
        One of each subtask; None if there was no such pass, or maybe more than one.
    """
    everybody = set(range(parallelism))
    stages: dict[int, list[Acknowledgement]] = {}
    for one in acknowledgements:
        stages.setdefault(one.stage_id, []).append(one)
    whole = [
        reports for reports in stages.values() if {one.subtask for one in reports} == everybody
    ]
    if not whole:
        whole = [acknowledgements]  # maybe one partition after the other, each by a job of its own
    while len(whole) > 1 and not any(map(_shows_rows, whole[0])):
        del whole[0]
    reports = whole[0]
    if len(whole) > 1 or sorted(one.subtask for one in reports) != sorted(everybody):
        return None
    begun = min(one.task_attempt_id for one in reports)
    glimpses = [one for one in acknowledgements if one not in reports]
    are_before = all(one.task_attempt_id < begun for one in glimpses)
    are_glimpses = {one.subtask for one in glimpses} != everybody or not any(
        map(_shows_rows, glimpses)
    )
    return reports if are_before and are_glimpses else None


def _shows_rows(report: Acknowledgement) -> bool:
    return report.state.statistics is None or report.state.statistics.rows_out > 0


def operator_state(
    operator: Operator,
    acknowledgements: list[Acknowledgement],
    *,
    max_parallelism: int,
    key_types: tuple[str, ...],
) -> OperatorState:
    """Put an operator's state together from the reports of all its subtasks.

    Args:
        operator: What the user says of it.
        acknowledgements: The reports.
        max_parallelism: Number of its key groups.
        key_types: Spark's types of its key's columns.

    Raises:
        CheckpointDeclinedError: A subtask is missing, or reported twice: then its rows went
            through the operator twice, and nobody knows which of both results the sink holds.
    """
    uid = operator.uid
    subtasks = {one.subtask: one.state for one in acknowledgements}
    if len(subtasks) < len(acknowledgements):
        message = (
            f"subtasks of operator {uid!r} reported more than once, because Spark ran a part of "
            "the sink's job again. If an executor was lost, restart the query, which repeats the "
            "batch; else the sink needs persist=True"
        )
        raise CheckpointDeclinedError(message)
    missing = sorted(set(range(operator.parallelism)) - set(subtasks))
    if missing:
        message = (
            f"no report of subtasks {missing} of operator {uid!r}: the sink's first action failed or "
            "did not read all rows; let it read them in one action, or use persist=True"
        )
        raise CheckpointDeclinedError(message)
    return OperatorState(
        parallelism=operator.parallelism,
        max_parallelism=max_parallelism,
        subtasks=dict(sorted(subtasks.items())),
        key=operator.key,
        key_hash=operator.key_hash,
        key_types=key_types,
    )
