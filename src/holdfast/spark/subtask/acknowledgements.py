"""The report of a subtask whose part of a checkpoint is written."""

from collections.abc import Iterable

import msgspec

from holdfast.common import message_pack_decoder
from holdfast.errors import CheckpointDeclinedError
from holdfast.locations.metadata import StoredOperator, StoredSubtask
from holdfast.spark.operators import Operator

COLUMN = "__holdfast_acknowledgement"
"""Name of the binary column for acknowledgements where these come as rows of the output; null in rows of
data."""


class Acknowledgement(msgspec.Struct, frozen=True):
    """The report of a subtask.

    Attributes:
        subtask: Index of the subtask.
        task_attempt_id: Spark's number of the task attempt, unique in the application.
        state: The subtask's state in the checkpoint.
        checkpoint_id: The checkpoint. A sink may read rows of an earlier batch, which runs the subtasks
            of that batch once more.
        stage_id: Spark's number of the task's stage. All subtasks of one pass over the rows are in
            one stage, if one job makes the pass.
        next_timers: The earliest timers of event time and of processing time that are left, in
            milliseconds since 1970; None where there is none.
    """

    subtask: int
    task_attempt_id: int
    state: StoredSubtask
    checkpoint_id: int
    stage_id: int = -1
    next_timers: tuple[int | None, int | None] = (None, None)

    def encode(self) -> bytes:
        """The bytes that travel to the driver."""
        return msgspec.msgpack.encode(self)


_DECODER = message_pack_decoder(Acknowledgement)


def decode_acknowledgements(encoded: Iterable[bytes]) -> list[Acknowledgement]:
    """The reports as they arrived, in no particular order."""
    return [_DECODER.decode(report) for report in encoded]


def operator_state(
    operator: Operator,
    acknowledgements: list[Acknowledgement],
    *,
    parallelism: int,
    max_parallelism: int,
    key_types: tuple[str, ...],
) -> StoredOperator:
    """Put an operator's state together from the reports of all its subtasks.

    Args:
        operator: The operator as the user describes it.
        acknowledgements: The reports.
        parallelism: Number of the operator's subtasks.
        max_parallelism: Number of its key groups.
        key_types: Spark's types of the columns of its key.

    Raises:
        CheckpointDeclinedError: A subtask is missing, or has reported twice: then rows went through
            the operator twice, and nobody knows which of both results the sink holds.
    """
    uid = operator.uid
    subtasks = {report.subtask: report.state for report in acknowledgements}
    if len(subtasks) < len(acknowledgements):
        message = (
            f"subtasks of operator {uid!r} reported more than once, because Spark ran a part of "
            "the sink's job again. If an executor was lost, restart the query, which repeats the "
            "batch; else the sink needs persist=True"
        )
        raise CheckpointDeclinedError(message)
    missing = sorted(set(range(parallelism)) - set(subtasks))
    if missing:
        message = (
            f"no report of subtasks {missing} of operator {uid!r}: the sink's first action failed or "
            "did not read all rows; let it read them in one action, or use persist=True"
        )
        raise CheckpointDeclinedError(message)
    return StoredOperator(
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        subtasks=dict(sorted(subtasks.items())),
        key=operator.key,
        key_hash=operator.key_hash,
        key_types=key_types,
    )
