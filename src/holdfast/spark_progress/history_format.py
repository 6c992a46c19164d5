"""The bytes of a history: MessagePack in `_metadata`, under the coordinator state `history`. Pure, no I/O.

{"blocks": [block, …], "recent": [checkpoint, …], "given_up": [attempt, …]}

The newest checkpoints stand in `recent`, as maps. When those are many they become a block: their numbers column by
column, most as differences, which zlib takes to a third. A block is never opened again to be carried on.
All together stay below `MOST_BYTES`: first the oldest blocks lose what they have of single operators, then they go.
"""

import zlib
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import msgspec

from holdfast.common import Count, DurationMs, Parallelism, TimeMs, message_pack_decoder
from holdfast.errors import CheckpointCorruptedError

HISTORY = "history"

MOST_BYTES = 32_000
"""The most that an encoded history may take."""

MOST_CHECKPOINTS = 1_000
"""At least so many are remembered, if they fit in; a block goes when it is not needed for them."""

MOST_OPERATORS = 16
"""A query with more has no figures of single operators: packing them would take milliseconds."""

MOST_ATTEMPTS = 32
MOST_REASON = 120
"""Characters of a reason."""

_BLOCK, _BLOCK_BYTES = 125, 8_000
_MOST_OPENED = 1 << 22
_ROOM = 200  # for the names of keys, and lengths


class PastOperator(msgspec.Struct, frozen=True, omit_defaults=True):
    """Counts and times of an operator's subtasks for a checkpoint, together.

    Attributes:
        parallelism: Their number.
        rows_in: Rows given to them.
        rows_late: Rows that came too late, and are not among those.
        rows_out: Rows that they gave on.
        written_bytes: State that was written, in files and inline.
        process_ms: Time in the operator's own code, of the slowest of them, milliseconds.
        restored_from: The farthest place where one found its state: `worker`, `local`, `storage`, or empty.
    """

    parallelism: Parallelism
    rows_in: Count = 0
    rows_late: Count = 0
    rows_out: Count = 0
    written_bytes: Count = 0
    process_ms: Count = 0
    restored_from: str = ""


class PastCheckpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """The figures of a completed checkpoint that later checkpoints remember.

    Attributes:
        checkpoint: The checkpoint's number.
        batch: The micro-batch of Spark that it completes; None if it is not one of Spark's.
        completed_ms: When, by the driver's clock, milliseconds since 1970 UTC.
        duration_ms: From its beginning to its completion, milliseconds.
        epoch: Number of the claim under which it was committed.
        new_bytes: The bytes of `_metadata`, and of files in the checkpoint's own directory.
        referenced_bytes: Files of state elsewhere.
        rows_in: The rows of the operator that was given the most.
        rows_late: The rows that were dropped because they came too late.
        rows_out: The rows that all operators together gave on.
        operators: By uid; empty if they are many, or it is so long ago that there was no room for them.
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
    operators: dict[str, PastOperator] = {}


class GivenUpAttempt(msgspec.Struct, frozen=True):
    """An attempt at a checkpoint that failed, and was cleaned up.

    Attributes:
        checkpoint: The number that it would have got.
        batch: The micro-batch of Spark.
        epoch: Number of the driver's claim.
        given_up_ms: When, by the driver's clock, milliseconds since 1970 UTC.
        duration_ms: How long it had taken until then, milliseconds.
        reason: The error's class; of Holdfast's own, the message too.
    """

    checkpoint: Count
    batch: Count
    epoch: Count
    given_up_ms: TimeMs
    duration_ms: DurationMs
    reason: str


class HistoryBlock(msgspec.Struct, frozen=True):
    """Checkpoints that lie so far back that nobody adds to them.

    Attributes:
        count: Their number.
        totals: Their columns, packed.
        operators: Columns of each operator, packed; empty if there was no room for them.
    """

    count: Count
    totals: bytes
    operators: bytes

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return len(self.totals) + len(self.operators) + 40


class History(msgspec.Struct, frozen=True, omit_defaults=True):
    """The checkpoints and failed attempts that are remembered.

    Attributes:
        blocks: Oldest first.
        recent: The checkpoints behind them.
        given_up: The newest attempts that were given up.
    """

    blocks: tuple[HistoryBlock, ...] = ()
    recent: tuple[PastCheckpoint, ...] = ()
    given_up: tuple[GivenUpAttempt, ...] = ()


NO_HISTORY = History()

_TOTALS = (
    "checkpoint",
    "batch",
    "completed_ms",
    "duration_ms",
    "epoch",
    "new_bytes",
    "referenced_bytes",
    "rows_in",
    "rows_late",
    "rows_out",
)
_OF_OPERATORS = (
    "parallelism",
    "rows_in",
    "rows_late",
    "rows_out",
    "written_bytes",
    "process_ms",
    "restored_from",
)

_DECODER = message_pack_decoder(History)
_COLUMNS = message_pack_decoder(list[list[int | None]])
_BY_UID = message_pack_decoder(dict[str, tuple[list[int], list[list[int | str]]]])


def with_checkpoint(history: History, checkpoint: PastCheckpoint) -> History:
    """The history with one more checkpoint."""
    if len(checkpoint.operators) > MOST_OPERATORS:
        checkpoint = msgspec.structs.replace(checkpoint, operators={})
    recent = (*history.recent, checkpoint)
    if len(recent) < _BLOCK and _length(recent) < _BLOCK_BYTES:
        return msgspec.structs.replace(history, recent=recent)
    return msgspec.structs.replace(history, blocks=(*history.blocks, _block(recent)), recent=())


def with_attempts(history: History, attempts: Iterable[GivenUpAttempt]) -> History:
    """The history with further attempts that were given up; the oldest go."""
    given_up = (*history.given_up, *attempts)[-MOST_ATTEMPTS:]
    return msgspec.structs.replace(history, given_up=given_up)


def encode_history(history: History) -> bytes:
    """The history in at most `MOST_BYTES` bytes."""
    blocks = list(history.blocks)
    count = sum(block.count for block in blocks) + len(history.recent)
    while blocks and count - blocks[0].count >= MOST_CHECKPOINTS:
        count -= blocks.pop(0).count
    room = MOST_BYTES - _ROOM - _length(history.recent) - _length(history.given_up)
    for index, block in enumerate(blocks):
        if sum(each.size for each in blocks) <= room:
            break
        blocks[index] = msgspec.structs.replace(block, operators=b"")
    while blocks and sum(block.size for block in blocks) > room:
        blocks.pop(0)
    return msgspec.msgpack.encode(msgspec.structs.replace(history, blocks=tuple(blocks)))


def decode_history(encoded: bytes, whose: str) -> History:
    """Read a history; its blocks stay closed.

    Args:
        encoded: The bytes of the history.
        whose: Where they stand, for errors.

    Raises:
        CheckpointCorruptedError: The bytes are no history.
    """
    try:
        return _DECODER.decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        message = f"history in {whose} can't be decoded ({error})"
        raise CheckpointCorruptedError(message) from error


def opened_blocks(history: History) -> list[PastCheckpoint]:
    """Every checkpoint of a history, oldest first.

    Raises:
        CheckpointCorruptedError: A block can't be read.
    """
    checkpoints: list[PastCheckpoint] = []
    try:
        for block in history.blocks:
            checkpoints += _opened(block)
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


def _block(checkpoints: Sequence[PastCheckpoint]) -> HistoryBlock:
    totals = []
    for name in _TOTALS:
        values = [getattr(checkpoint, name) for checkpoint in checkpoints]
        totals.append(values if None in values else _differences(values))
    by_uid: dict[str, list[tuple[int, PastOperator]]] = {}
    for place, checkpoint in enumerate(checkpoints):
        for uid, operator in checkpoint.operators.items():
            by_uid.setdefault(uid, []).append((place, operator))
    columns = {
        uid: (
            _differences([place for place, _ in had]),
            [[getattr(operator, name) for _, operator in had] for name in _OF_OPERATORS],
        )
        for uid, had in by_uid.items()
    }
    return HistoryBlock(len(checkpoints), _packed(totals), _packed(columns) if columns else b"")


def _opened(block: HistoryBlock) -> list[PastCheckpoint]:
    columns = []
    for values in _COLUMNS.decode(_unpacked(block.totals)):
        known = [value for value in values if value is not None]
        columns.append(list(accumulate(known)) if len(known) == len(values) else values)
    # Not by the block's own count, which could be any number.
    operators: list[dict[str, PastOperator]] = [{} for _ in columns[0]]
    for uid, (places, values_of) in (
        _BY_UID.decode(_unpacked(block.operators)).items() if block.operators else ()
    ):
        for place, *values in zip(accumulate(places), *values_of, strict=True):
            had = dict(zip(_OF_OPERATORS, values, strict=True))
            operators[place][uid] = msgspec.convert(had, PastOperator)
    rows = zip(*columns, operators, strict=True)
    names = (*_TOTALS, "operators")
    return [msgspec.convert(dict(zip(names, row, strict=True)), PastCheckpoint) for row in rows]


def _differences(values: Sequence[int]) -> list[int]:
    """The first value, and how much each other one is above the one before."""
    return [*values[:1], *(later - earlier for earlier, later in pairwise(values))]


def _packed(columns: Any) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(columns), 6)


def _unpacked(packed: bytes) -> bytes:
    """The columns, if they are of a length that there can be: nothing here fills memory."""
    inflating = zlib.decompressobj()
    columns = inflating.decompress(packed, _MOST_OPENED)
    if inflating.unconsumed_tail or not inflating.eof:
        raise ValueError("it is cut off, or longer than any that was written")
    return columns
