"""Reads Spark's own logs of a batch. Pure: texts in, values out.

    offsets/<batch>    v1
                       {"batchTimestampMs":…,"conf":{"spark.sql.shuffle.partitions":"2",…},…}
                       {"logOffset":3}      a line for each place that a source has in the plan
                       …
    commits/<batch>    v1, or v2 with
                       {"stateUniqueIds":{"<operator>":[["<id of a store's state>",…],…]},…}
                                            a list for each partition

In version 2 of `offsets` there is a line `<name>:<offset>` for each source; a source without a name has its
last place in the plan instead.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.common import json_decoder
from holdfast.errors import CheckpointCorruptedError

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
STATE_STORE = "spark.sql.streaming.stateStore."
"""How names of settings for Spark's own state begin."""
PROVIDER_CLASS = f"{STATE_STORE}providerClass"

_PLACE = re.compile("[0-9]{1,3}")


@dataclass(frozen=True, slots=True)
class LogOffset:
    """How far the log of a source of files counts.

    A directory below `sources` has the number of its source, a line of `offsets` the number of a place in
    the plan. A source that a plan has twice has two places, so that sources behind it have other numbers
    than their directories.

    Attributes:
        least: The last entry that counts for sure; -1 if it may be no such log.
        last: The last that may count.
        is_certain: Whether there is such a source for sure, and it is a log of files.
    """

    least: int
    last: int
    is_certain: bool


@dataclass(frozen=True, slots=True)
class Offsets:
    """An entry of the offset log.

    Attributes:
        pinned: Settings that the checkpoint was begun with, and keeps.
        log_offsets: For each source that is, or may be, a log of files, how far that counts; by
            the name of its directory below `sources`.
        begun_ms: When the batch was begun, milliseconds since 1970 UTC; None if it doesn't say.
    """

    pinned: dict[str, str] = field(default_factory=dict)
    log_offsets: dict[str, LogOffset] = field(default_factory=dict)
    begun_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedBatch:
    """A batch that the stream has come to, as Spark's logs have it.

    Attributes:
        batch_id: The number of the batch.
        is_committed: Whether Spark has noted that it is done.
        offsets: Spark's entry of the offset log.
        state_ids: Looks up which ids of a version of the state count; none in format 1.
    """

    batch_id: int
    is_committed: bool
    offsets: Offsets
    state_ids: Callable[[int], frozenset[str]]

    @property
    def version(self) -> int:
        """Version of the state that Spark goes on from."""
        # A batch that is not committed Spark does again, from the state before it.
        return self.batch_id + self.is_committed


def decode_offsets(text: str, *, uri: str) -> Offsets:
    """Read an entry of the offset log.

    Raises:
        CheckpointCorruptedError: The text is something else.
    """
    version, _, body = text.partition("\n")
    first, *lines = body.split("\n")
    head = _json(first, uri)
    pinned = head.get("conf", {})
    begun_ms = head.get("batchTimestampMs")
    return Offsets(
        {str(key): str(value) for key, value in pinned.items()},
        _named(lines) if version == "v2" else _numbered(lines),
        begun_ms if isinstance(begun_ms, int) else None,
    )


def decode_state_ids(text: str, *, uri: str) -> frozenset[str]:
    """Ids of the state that a batch has left, in an entry of the commit log; none in format 1.

    Raises:
        CheckpointCorruptedError: The text is something else.
    """
    _, _, body = text.partition("\n")
    operators = (_json(body, uri).get("stateUniqueIds") or {}).values()
    return frozenset(
        str(state_id)
        for partitions in operators
        for stores in partitions
        for state_id in stores
        if state_id
    )


def _numbered(lines: list[str]) -> dict[str, LogOffset]:
    """How far logs of files count, by the directory of the source; a line for every place."""
    lasts = [_log_offset(line) for line in lines]
    # Lines of the same source are equal, so the lines before each are of at least so many sources.
    sources = [len(set(lines[:at])) for at in range(len(lines) + 1)]
    offsets = {}
    for number in range(len(lines)):
        possible = [lasts[at] for at in range(number, len(lines)) if sources[at] <= number]
        offsets[str(number)] = _counted(possible, is_there=number < sources[-1])
    return {name: offset for name, offset in offsets.items() if offset is not None}


def _named(lines: list[str]) -> dict[str, LogOffset]:
    """How far logs of files count, where a source has one line: its name, or last place, and offset."""
    lasts = {name: _log_offset(rest) for name, _, rest in (line.partition(":") for line in lines)}
    places = {int(name): last for name, last in lasts.items() if _PLACE.fullmatch(name)}
    offsets = {name: _counted([last], is_there=True) for name, last in lasts.items()}
    if sorted(places) != list(range(len(places))):  # some are twice, or have no offset yet
        for number in range(max(places) + 1):
            behind = [last for place, last in places.items() if place >= number]
            offsets[str(number)] = _counted([None, *behind], is_there=False)
    return {name: offset for name, offset in offsets.items() if offset is not None}


def _counted(possible: list[int | None], *, is_there: bool) -> LogOffset | None:
    """How far the log of a directory counts; None if it can't hold a log of files.

    Args:
        possible: The offsets that the directory's source can have; None for any that is no log's.
        is_there: Whether the plan has a source with this directory for sure.
    """
    lasts = [last for last in possible if last is not None]
    if not lasts:
        return None
    is_log = len(lasts) == len(possible)
    return LogOffset(min(lasts) if is_log else -1, max(lasts), is_log and is_there)


class _FileOffset(msgspec.Struct, forbid_unknown_fields=True):
    """The offset of a source that is a log of files."""

    logOffset: int  # noqa: N815  # Spark's name


_FILE_OFFSET = json_decoder(_FileOffset)
_ENTRY = json_decoder(dict[str, Any])


def _log_offset(line: str) -> int | None:
    """How far a line says that a log of files counts; None if the source has offsets of another kind."""
    try:
        return _FILE_OFFSET.decode(line).logOffset
    except msgspec.MsgspecError:
        return None  # Kafka has topics by name, other sources need not even be JSON


def _json(line: str, uri: str) -> dict[str, Any]:
    try:
        return _ENTRY.decode(line)
    except msgspec.MsgspecError as error:
        message = f"Spark's log has an entry that can't be read ({error})"
        raise CheckpointCorruptedError(message, uri) from error
