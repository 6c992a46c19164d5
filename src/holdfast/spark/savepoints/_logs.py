"""What Spark's own logs say of a batch. Pure: texts in, values out.

`offsets/N` is a line with the version, one of JSON with what is pinned, and one for each source;
`commits/N` a line with the version and one of JSON.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.errors import CheckpointCorruptedError

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
PROVIDER_CLASS = "spark.sql.streaming.stateStore.providerClass"


@dataclass(frozen=True, slots=True)
class Offsets:
    """An entry of the offset log.

    Attributes:
        pinned: Settings that the checkpoint was begun with, and keeps.
        log_offsets: For each source that is a log of files, the last entry that counts; by the
            name of its directory below `sources`.
        begun_ms: When the batch was begun, milliseconds since 1970 UTC; None if it doesn't say.
    """

    pinned: dict[str, str] = field(default_factory=dict)
    log_offsets: dict[str, int] = field(default_factory=dict)
    begun_ms: int | None = None


def decode_offsets(text: str, *, uri: str) -> Offsets:
    """Read an entry of the offset log.

    Raises:
        CheckpointCorruptedError: It is something else.
    """
    _, _, body = text.partition("\n")
    first, *sources = body.split("\n")
    head = _json(first, uri)
    pinned = head.get("conf", {})
    begun_ms = head.get("batchTimestampMs")
    found = {}
    for index, line in enumerate(sources):
        name, separator, rest = line.partition(":")
        if line.startswith("{") or not separator:  # sources have no names but numbers
            name, rest = str(index), line
        if "logOffset" in rest and (log_offset := _log_offset(rest)) is not None:
            found[name] = log_offset
    return Offsets(
        {str(key): str(value) for key, value in pinned.items()},
        found,
        begun_ms if isinstance(begun_ms, int) else None,
    )


def decode_state_ids(text: str, *, uri: str) -> frozenset[str]:
    """Ids of the state that a batch has left, in an entry of the commit log; none in format 1.

    Raises:
        CheckpointCorruptedError: It is something else.
    """
    _, _, body = text.partition("\n")
    operators = (_json(body, uri).get("stateUniqueIds") or {}).values()
    return frozenset(
        str(one) for partitions in operators for stores in partitions for one in stores if one
    )


class _FileOffset(msgspec.Struct):
    """The offset of a source that is a log of files."""

    logOffset: int  # noqa: N815  # Spark's name


def _log_offset(line: str) -> int | None:
    """That of a log of files; None of a source with offsets of its own kind."""
    try:
        return msgspec.json.decode(line, type=_FileOffset).logOffset
    except msgspec.MsgspecError:
        return None  # Kafka has topics by name, other sources need not even be JSON


def _json(line: str, uri: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        message = f"Spark's log has an entry that can't be read ({error})"
        raise CheckpointCorruptedError(message, uri) from error
