"""Spark's logs of a query: decoded, and searched for the batch that the query has reached.

    offsets/<batch>    v1
                       {"batchTimestampMs":…,"conf":{"spark.sql.shuffle.partitions":"2",…},…}
                       {"logOffset":3}      a line for each position of a source in the plan
                       …
    commits/<batch>    v1, or v2 with
                       {"stateUniqueIds":{"<operator>":[["<id of a store's state>",…],…]},…}
                                            a list for each partition

Version 2 of `offsets` has a line `<name>:<offset>` for each source; a source without a name has its last
position in the plan instead.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec

from holdfast.common import json_decoder
from holdfast.errors import CheckpointCorruptedError, CheckpointNotFoundError
from holdfast.spark.checkpoint_location.file_names import logged_batches, state_file
from holdfast.spark.checkpoint_location.files import names_in, read_text

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
STATE_STORE = "spark.sql.streaming.stateStore."
"""The prefix of settings for Spark's own state."""
PROVIDER_CLASS = f"{STATE_STORE}providerClass"

_POSITION = re.compile("[0-9]{1,3}")


@dataclass(frozen=True, slots=True)
class LogOffset:
    """The last entry of a file source's log that belongs to a batch.

    A directory below `sources` has the number of its source, a line of `offsets` the number of a position in
    the plan. A source that occurs twice in a plan has two positions, so that the numbers of later sources
    differ from those of their directories.

    Attributes:
        min_last: The last entry that certainly belongs to the batch; -1 if it is uncertain that this is a log.
        max_last: The last entry that may belong to the batch.
        is_certain: Whether the source certainly exists and has a log of files.
    """

    min_last: int
    max_last: int
    is_certain: bool


@dataclass(frozen=True, slots=True)
class Offsets:
    """An entry of the offset log.

    Attributes:
        pinned: Settings that the query had when it was started first, and keeps.
        log_offsets: The last entry of each source that has, or may have, a log of files; by the name of its
            directory below `sources`.
        start_ms: Start of the batch, milliseconds since 1970 UTC; None if it is not recorded.
    """

    pinned: dict[str, str] = field(default_factory=dict)
    log_offsets: dict[str, LogOffset] = field(default_factory=dict)
    start_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedBatch:
    """A batch in Spark's logs.

    Attributes:
        is_committed: Whether the commit log contains it.
        offsets: Its entry of the offset log.
        state_ids: Returns the ids of the committed files of a version of the state; none in format 1.
    """

    batch_id: int
    is_committed: bool
    offsets: Offsets
    state_ids: Callable[[int], frozenset[str]]

    @property
    def version(self) -> int:
        """The version of the state from which Spark resumes."""
        # Spark repeats a batch that is not committed, from the state before it.
        return self.batch_id + self.is_committed


def newest_committed(checkpoint_location: str) -> int | None:
    """Return the last batch in the commit log; None if there is no such batch."""
    return _newest(checkpoint_location, "commits")


def newest_batch(checkpoint_location: str) -> int | None:
    """Return the last batch in the offset log; None if there is no such batch."""
    return _newest(checkpoint_location, "offsets")


def batch_at(checkpoint_location: str, paths: Collection[str], batch_id: int) -> LoggedBatch:
    """Read the entries of a batch from Spark's logs; `paths` are all files of the checkpointLocation.

    Raises:
        CheckpointNotFoundError: The logs no longer contain the batch, or not yet.
        CheckpointCorruptedError: An entry can't be read.
    """
    uri = f"{checkpoint_location}/offsets/{batch_id}"
    if f"offsets/{batch_id}" not in paths:
        raise CheckpointNotFoundError(f"Spark's logs don't have batch {batch_id}", uri)
    committed = logged_batches(paths, "commits")

    @cache  # many stores ask for the same version, and most versions are not needed
    def state_ids(version: int) -> frozenset[str]:
        if version - 1 not in committed:
            return frozenset()
        entry = f"{checkpoint_location}/commits/{version - 1}"
        return decode_state_ids(read_text(entry), uri=entry)

    return LoggedBatch(
        batch_id=batch_id,
        is_committed=batch_id in committed,
        offsets=decode_offsets(read_text(uri), uri=uri),
        state_ids=state_ids,
    )


def inferred_settings(paths: Collection[str]) -> dict[str, str]:
    """Infer settings from names of files that Spark doesn't store itself."""
    files = [file for path in paths if (file := state_file(path)) is not None]
    settings = {}
    if any(file.state_id for file in files):
        settings[f"{STATE_STORE}checkpointFormatVersion"] = "2"
    if any(file.kind == "changelog" for file in files):
        settings[f"{STATE_STORE}rocksdb.changelogCheckpointing.enabled"] = "true"
    return settings


def _newest(checkpoint_location: str, log: str) -> int | None:
    names = names_in(f"{checkpoint_location}/{log}")
    return max(logged_batches((f"{log}/{name}" for name in names), log), default=None)


def decode_offsets(text: str, *, uri: str) -> Offsets:
    """Decode an entry of the offset log. Raises `CheckpointCorruptedError`."""
    version, _, body = text.partition("\n")
    first, *lines = body.split("\n")
    head = _decode(first, uri)
    pinned = head.get("conf", {})
    start_ms = head.get("batchTimestampMs")
    return Offsets(
        {str(key): str(value) for key, value in pinned.items()},
        _decode_names(lines) if version == "v2" else _decode_positions(lines),
        start_ms if isinstance(start_ms, int) else None,
    )


def decode_state_ids(text: str, *, uri: str) -> frozenset[str]:
    """Decode the ids of a batch's state files in an entry of the commit log; none in format 1."""
    _, _, body = text.partition("\n")
    operators = (_decode(body, uri).get("stateUniqueIds") or {}).values()
    return frozenset(
        str(state_id)
        for partitions in operators
        for stores in partitions
        for state_id in stores
        if state_id
    )


def _decode_positions(lines: list[str]) -> dict[str, LogOffset]:
    """Decode one line for each position in the plan; the result is by the directory of the source."""
    lasts = [_log_offset(line) for line in lines]
    # Lines of the same source are equal: the number of different lines is a lower bound of that of sources.
    sources = [len(set(lines[:at])) for at in range(len(lines) + 1)]
    offsets = {}
    for number in range(len(lines)):
        possible = [lasts[at] for at in range(number, len(lines)) if sources[at] <= number]
        offsets[str(number)] = _combine(possible, exists=number < sources[-1])
    return {name: offset for name, offset in offsets.items() if offset is not None}


def _decode_names(lines: list[str]) -> dict[str, LogOffset]:
    """Decode one line for each source, with its name, or its last position, and its offset."""
    lasts = {name: _log_offset(rest) for name, _, rest in (line.partition(":") for line in lines)}
    positions = {int(name): last for name, last in lasts.items() if _POSITION.fullmatch(name)}
    offsets = {name: _combine([last], exists=True) for name, last in lasts.items()}
    if sorted(positions) != list(range(len(positions))):  # some occur twice, or have no offset yet
        for number in range(max(positions) + 1):
            possible = [last for position, last in positions.items() if position >= number]
            offsets[str(number)] = _combine([None, *possible], exists=False)
    return {name: offset for name, offset in offsets.items() if offset is not None}


def _combine(possible: list[int | None], *, exists: bool) -> LogOffset | None:
    """Combine the possible offsets of a directory's source; None if the directory can't contain a log of files.

    An offset of another log stays None. `exists` is whether the plan certainly has such a source.
    """
    lasts = [last for last in possible if last is not None]
    if not lasts:
        return None
    is_log = len(lasts) == len(possible)
    return LogOffset(min(lasts) if is_log else -1, max(lasts), is_log and exists)


class _FileOffset(msgspec.Struct, forbid_unknown_fields=True):
    """The offset of a source that has a log of files."""

    logOffset: int  # noqa: N815  # Spark's name


_FILE_OFFSET = json_decoder(_FileOffset)
_ENTRY = json_decoder(dict[str, Any])


def _log_offset(line: str) -> int | None:
    """Decode the offset of a log of files; None if the source has other offsets."""
    try:
        return _FILE_OFFSET.decode(line).logOffset
    except msgspec.MsgspecError:
        return None  # Kafka's has topics by name; other sources' need not even be JSON


def _decode(line: str, uri: str) -> dict[str, Any]:
    try:
        return _ENTRY.decode(line)
    except msgspec.MsgspecError as error:
        message = f"Spark's log has an entry that can't be read ({error})"
        raise CheckpointCorruptedError(message, uri) from error
