"""Statistics of checkpoints that retention has deleted, copied from each checkpoint to the next.

Each checkpoint has the statistics of the checkpoints before it in `_metadata`, under the coordinator state `history`;
its own follow from the rest of its metadata. So only `_metadata` is written, and a job that is rolled back has
the history of the checkpoint that it was rolled back to. The format is MessagePack:

    {"blocks": [block, …], "recent": [checkpoint, …], "given_up": [attempt, …]}

`recent` has the newest checkpoints, as maps. When it is full it becomes a block: numbers column by column, most of
them as differences, which zlib compresses to a third. Later checkpoints copy blocks without unpacking them. The
encoded history stays below `MAX_BYTES`: the oldest blocks lose their columns of operators first, then they are dropped.
"""

import zlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import msgspec

from holdfast.common import Count, DurationMs, Parallelism, TimeMs, message_pack_decoder
from holdfast.errors import CheckpointCorruptedError, CheckpointError
from holdfast.locations.coordination import checkpoint_size
from holdfast.locations.metadata import CheckpointMetadata, StoredOperator
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark_progress.checkpoint_view import iso_time
from holdfast.spark_progress.progress import progress_of

HISTORY = "history"

MAX_BYTES = 32_000
"""Size limit of an encoded history."""

MIN_CHECKPOINTS = 1_000
"""Number of checkpoints to keep if they fit into `MAX_BYTES`; blocks before them are dropped."""

MAX_OPERATORS = 16
"""Queries with more operators store no statistics of single operators: packing those would take milliseconds."""

MAX_ATTEMPTS = 32
MAX_REASON_CHARACTERS = 120
"""Length limit of `FailedAttempt.reason`."""

_BLOCK, _BLOCK_BYTES = 125, 8_000
_MAX_UNPACKED_BYTES = 1 << 22
_ENVELOPE_BYTES = 200  # names of keys, and lengths

_PLACES = ("", "worker", "local", "storage")
"""Places from which a subtask can be restored, the most distant last."""


class OperatorStatistics(msgspec.Struct, frozen=True, omit_defaults=True):
    """Statistics of an operator in a checkpoint: totals of its subtasks.

    Attributes:
        parallelism: Number of subtasks.
        rows_in: Rows that were processed.
        rows_late: Rows that were dropped because they were late; not part of `rows_in`.
        rows_out: Rows that were emitted.
        written_bytes: State that was written, in files and inline.
        process_ms: Time in the operator's code, in the slowest subtask, milliseconds.
        restored_from: The most distant place from which a subtask was restored: `worker`, `local`, `storage`, or empty.
    """

    parallelism: Parallelism
    rows_in: Count = 0
    rows_late: Count = 0
    rows_out: Count = 0
    written_bytes: Count = 0
    process_ms: Count = 0
    restored_from: str = ""


class CheckpointStatistics(msgspec.Struct, frozen=True, omit_defaults=True):
    """Statistics of a completed checkpoint, kept by the checkpoints after it.

    Attributes:
        checkpoint: Checkpoint id.
        batch: The micro-batch that it completes; None if no Spark query took it.
        completed_ms: Time of completion by the driver's clock, milliseconds since 1970 UTC.
        duration_ms: Milliseconds from start to completion.
        epoch: Number of the claim under which it was committed.
        new_bytes: Size of `_metadata` and of the files in the checkpoint's own directory.
        referenced_bytes: Size of state files elsewhere.
        rows_in: Rows that were processed by the operator with the most.
        rows_late: Rows that were dropped because they were late, of all operators.
        rows_out: Rows that were emitted by all operators.
        operators: Statistics by uid; empty if there are too many operators, or no room was left for them.
    """

    checkpoint: Count
    batch: Count | None
    completed_ms: TimeMs
    duration_ms: Count
    epoch: Count = 0
    new_bytes: Count = 0
    referenced_bytes: Count = 0
    rows_in: Count = 0
    rows_late: Count = 0
    rows_out: Count = 0
    operators: dict[str, OperatorStatistics] = {}


class FailedAttempt(msgspec.Struct, frozen=True):
    """A checkpoint that failed and was cleaned up.

    Attributes:
        checkpoint: The id that it would have had.
        batch: The micro-batch of Spark.
        epoch: Number of the driver's claim.
        failed_ms: Time of failure by the driver's clock, milliseconds since 1970 UTC.
        duration_ms: Milliseconds from start to failure.
        reason: Class of the error; with the message if it is one of Holdfast.
    """

    checkpoint: Count
    batch: Count
    epoch: Count
    failed_ms: TimeMs = msgspec.field(name="given_up_ms")
    duration_ms: DurationMs
    reason: str


class HistoryBlock(msgspec.Struct, frozen=True):
    """A full run of checkpoints: packed columns of them, and of each operator if there was room for these."""

    count: Count
    totals: bytes
    operators: bytes

    @property
    def size(self) -> int:
        """Approximate encoded size in bytes."""
        return len(self.totals) + len(self.operators) + 40


class StoredHistory(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job's history as a checkpoint stores it: all oldest first, `recent` after the blocks."""

    blocks: tuple[HistoryBlock, ...] = ()
    recent: tuple[CheckpointStatistics, ...] = ()
    failed_attempts: tuple[FailedAttempt, ...] = msgspec.field(default=(), name="given_up")


NO_HISTORY = StoredHistory()

# The order of their fields is part of the format.
_TOTAL_COLUMNS = CheckpointStatistics.__struct_fields__[:-1]
_OPERATOR_COLUMNS = OperatorStatistics.__struct_fields__

_DECODER = message_pack_decoder(StoredHistory)
_COLUMNS = message_pack_decoder(list[list[int | None]])
_BY_UID = message_pack_decoder(dict[str, tuple[list[int], list[list[int | str]]]])


@dataclass(frozen=True, slots=True)
class History:
    """The recorded history of a job, oldest first; deleted checkpoints included."""

    checkpoints: tuple[CheckpointStatistics, ...] = ()
    failed_attempts: tuple[FailedAttempt, ...] = ()

    def checkpoint_rows(self, retained: Collection[int]) -> list[dict[str, Any]]:
        """Return a row for each checkpoint, oldest first, as commands and the report show them; `retained` has ids."""
        rows = []
        for before, statistics in zip((None, *self.checkpoints), self.checkpoints, strict=False):
            # The driver of a later epoch resumed from the checkpoint before. Claims without a checkpoint count too.
            claims = 0 if before is None else statistics.epoch - before.epoch
            rows.append(
                msgspec.structs.asdict(statistics)
                | {
                    "completed": iso_time(statistics.completed_ms),
                    "operators": {
                        uid: msgspec.structs.asdict(operator)
                        for uid, operator in sorted(statistics.operators.items())
                    },
                    "is_retained": statistics.checkpoint in retained,
                    "restored_checkpoint": before.checkpoint if before and claims > 0 else None,
                    "claims": max(0, claims),
                }
            )
        return rows

    def attempt_rows(self) -> list[dict[str, Any]]:
        """Return a row for each failed attempt, oldest first."""
        return [
            msgspec.structs.asdict(attempt) | {"failed": iso_time(attempt.failed_ms)}
            for attempt in self.failed_attempts
        ]


def checkpoint_statistics(completed: CompletedCheckpoint) -> CheckpointStatistics:
    """Return the statistics of a checkpoint; counts that were not recorded are zero."""
    metadata = completed.metadata
    size = checkpoint_size(completed)
    operators = {uid: _operator(state) for uid, state in metadata.operators.items()}
    return CheckpointStatistics(
        checkpoint=metadata.checkpoint_id,
        batch=batch_of(metadata),
        completed_ms=metadata.created_ms,
        duration_ms=round(metadata.duration_ms),
        epoch=metadata.epoch,
        new_bytes=size.new_bytes,
        referenced_bytes=size.referenced_bytes,
        # Operators in a chain process the same rows.
        rows_in=max((operator.rows_in for operator in operators.values()), default=0),
        rows_late=sum(operator.rows_late for operator in operators.values()),
        rows_out=sum(operator.rows_out for operator in operators.values()),
        operators=operators,
    )


def next_history(
    latest: CompletedCheckpoint | None, attempts: Iterable[FailedAttempt]
) -> dict[str, bytes]:
    """Return the coordinator state with the history of the next checkpoint; empty without a history.

    A history that can't be read is replaced by a new one: it must not stop the job.

    Args:
        latest: The previous checkpoint.
        attempts: Attempts that failed since then.
    """
    history = NO_HISTORY
    if latest is not None:
        try:
            history = _history_in(latest.metadata)
        except CheckpointError:
            history = NO_HISTORY
        history = with_checkpoint(history, checkpoint_statistics(latest))
    history = with_attempts(history, attempts)
    return {} if history == NO_HISTORY else {HISTORY: encode_history(history)}


def history_of(checkpoints: Sequence[CompletedCheckpoint]) -> History:
    """Return the history of a job.

    Args:
        checkpoints: The retained checkpoints, oldest first.

    Raises:
        CheckpointCorruptedError: The history in the newest can't be read.
    """
    if not checkpoints:
        return History()
    newest = checkpoints[-1].metadata
    recorded = newest.coordinator_states.get(HISTORY)
    return merge_history(recorded, map(checkpoint_statistics, checkpoints), _place_of(newest))


def merge_history(
    recorded: bytes | None, retained: Iterable[CheckpointStatistics], place: str
) -> History:
    """Return the history of a job from the history that its newest checkpoint has recorded.

    Args:
        recorded: The coordinator state `HISTORY` of the newest checkpoint; None if it has none.
        retained: Statistics of checkpoints that are retained, which replace the recorded ones.
        place: The place of the newest checkpoint, for errors.

    Raises:
        CheckpointCorruptedError: The recorded history can't be read.
    """
    history = _stored_history(recorded, place)
    by_id = {each.checkpoint: each for each in (*unpack_history(history), *retained)}
    return History(tuple(by_id[number] for number in sorted(by_id)), history.failed_attempts)


def _history_in(metadata: CheckpointMetadata) -> StoredHistory:
    return _stored_history(metadata.coordinator_states.get(HISTORY), _place_of(metadata))


def _stored_history(recorded: bytes | None, place: str) -> StoredHistory:
    # The first checkpoint has none, nor have those that were written before there was a history.
    return NO_HISTORY if recorded is None else decode_history(recorded, place)


def _place_of(metadata: CheckpointMetadata) -> str:
    return f"checkpoint {metadata.checkpoint_id} of job {metadata.job_id}"


def batch_of(metadata: CheckpointMetadata) -> int | None:
    """Return the micro-batch that a checkpoint completes; None if no query took it, or its progress can't be decoded."""
    try:
        return progress_of(metadata).batch_id
    except CheckpointError:
        return None


def _operator(state: StoredOperator) -> OperatorStatistics:
    known = [subtask.statistics for subtask in state.subtasks.values() if subtask.statistics]
    places = {statistics.restored_from for statistics in known}
    return OperatorStatistics(
        parallelism=state.parallelism,
        rows_in=sum(statistics.rows_in for statistics in known),
        rows_late=sum(statistics.rows_late for statistics in known),
        rows_out=sum(statistics.rows_out for statistics in known),
        written_bytes=sum(statistics.state_bytes for statistics in known),
        process_ms=round(max((statistics.process_ms for statistics in known), default=0)),
        restored_from=max(places & set(_PLACES), key=_PLACES.index, default=""),
    )


def with_checkpoint(history: StoredHistory, checkpoint: CheckpointStatistics) -> StoredHistory:
    """Return the history with one more checkpoint."""
    if len(checkpoint.operators) > MAX_OPERATORS:
        checkpoint = msgspec.structs.replace(checkpoint, operators={})
    recent = (*history.recent, checkpoint)
    if len(recent) < _BLOCK and _length(recent) < _BLOCK_BYTES:
        return msgspec.structs.replace(history, recent=recent)
    return msgspec.structs.replace(
        history, blocks=(*history.blocks, _pack_block(recent)), recent=()
    )


def with_attempts(history: StoredHistory, attempts: Iterable[FailedAttempt]) -> StoredHistory:
    """Return the history with further failed attempts; the oldest are dropped."""
    failed_attempts = (*history.failed_attempts, *attempts)[-MAX_ATTEMPTS:]
    return msgspec.structs.replace(history, failed_attempts=failed_attempts)


def encode_history(history: StoredHistory) -> bytes:
    """Encode a history in at most `MAX_BYTES` bytes."""
    blocks = list(history.blocks)
    count = sum(block.count for block in blocks) + len(history.recent)
    while blocks and count - blocks[0].count >= MIN_CHECKPOINTS:
        count -= blocks.pop(0).count
    room = MAX_BYTES - _ENVELOPE_BYTES - _length(history.recent) - _length(history.failed_attempts)
    for index, block in enumerate(blocks):
        if sum(each.size for each in blocks) <= room:
            break
        blocks[index] = msgspec.structs.replace(block, operators=b"")
    while blocks and sum(block.size for block in blocks) > room:
        blocks.pop(0)
    return msgspec.msgpack.encode(msgspec.structs.replace(history, blocks=tuple(blocks)))


def decode_history(encoded: bytes, place: str) -> StoredHistory:
    """Decode a history without unpacking its blocks; errors name the place.

    Raises:
        CheckpointCorruptedError: The bytes are not a valid history.
    """
    try:
        return _DECODER.decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        message = f"history in {place} can't be decoded ({error})"
        raise CheckpointCorruptedError(message) from error


def unpack_history(history: StoredHistory) -> list[CheckpointStatistics]:
    """Return all checkpoints of a history, oldest first. Raises `CheckpointCorruptedError`."""
    checkpoints: list[CheckpointStatistics] = []
    try:
        for block in history.blocks:
            checkpoints += _unpack_block(block)
    except (
        msgspec.MsgspecError,
        UnicodeDecodeError,
        RecursionError,
        zlib.error,
        ValueError,
        TypeError,
        IndexError,
    ) as error:
        raise CheckpointCorruptedError(f"block of a history can't be read ({error})") from error
    return [*checkpoints, *history.recent]


def _length(part: object) -> int:
    return len(msgspec.msgpack.encode(part))


def _pack_block(checkpoints: Sequence[CheckpointStatistics]) -> HistoryBlock:
    totals = []
    for name in _TOTAL_COLUMNS:
        values = [getattr(checkpoint, name) for checkpoint in checkpoints]
        totals.append(values if None in values else _encode_differences(values))
    by_uid: dict[str, list[tuple[int, OperatorStatistics]]] = {}
    for position, checkpoint in enumerate(checkpoints):
        for uid, operator in checkpoint.operators.items():
            by_uid.setdefault(uid, []).append((position, operator))
    columns = {
        uid: (
            _encode_differences([position for position, _ in rows]),
            [[getattr(operator, name) for _, operator in rows] for name in _OPERATOR_COLUMNS],
        )
        for uid, rows in by_uid.items()
    }
    return HistoryBlock(len(checkpoints), _pack(totals), _pack(columns) if columns else b"")


def _unpack_block(block: HistoryBlock) -> list[CheckpointStatistics]:
    columns = []
    for values in _COLUMNS.decode(_unpack(block.totals)):
        known = [value for value in values if value is not None]
        columns.append(list(accumulate(known)) if len(known) == len(values) else values)
    # `block.count` is not verified: it could be any number.
    operators: list[dict[str, OperatorStatistics]] = [{} for _ in columns[0]]
    for uid, (positions, values_of) in (
        _BY_UID.decode(_unpack(block.operators)).items() if block.operators else ()
    ):
        for position, *values in zip(accumulate(positions), *values_of, strict=True):
            row = dict(zip(_OPERATOR_COLUMNS, values, strict=True))
            operators[position][uid] = msgspec.convert(row, OperatorStatistics)
    rows = zip(*columns, operators, strict=True)
    names = CheckpointStatistics.__struct_fields__
    return [
        msgspec.convert(dict(zip(names, row, strict=True)), CheckpointStatistics) for row in rows
    ]


def _encode_differences(values: Sequence[int]) -> list[int]:
    """Return the first value, and the difference of each other value to the one before it."""
    return [*values[:1], *(later - earlier for earlier, later in pairwise(values))]


def _pack(columns: Any) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(columns), 6)


def _unpack(packed: bytes) -> bytes:
    """Decompress columns, up to a limit, so that a corrupt block does not fill memory."""
    inflating = zlib.decompressobj()
    columns = inflating.decompress(packed, _MAX_UNPACKED_BYTES)
    if inflating.unconsumed_tail or not inflating.eof:
        raise ValueError("it is truncated, or longer than a block can be")
    return columns
