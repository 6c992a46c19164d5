"""Decoders of MessagePack and JSON, and the bounds of the numbers in stored files.

msgspec examines a class when the first decoder for it is made, and caches the result in the class. If another
thread uses the class at that moment, it reads incomplete data and the process ends with a segmentation fault
(msgspec 0.22.0). So decoders are made by one thread at a time. Once made, many threads may share one.

A correct checksum proves that a file is unchanged, but not who wrote it. Later reads use these numbers without
another check, so decoders enforce the bounds.
"""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec

from holdfast.common.process_local import ProcessLock

MAX_INT64 = 2**63 - 1
"""Largest integer that every language that reads these files can represent."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT64)]
"""A number of bytes, elements or rows, a position, or an id."""

Parallelism = Annotated[int, msgspec.Meta(ge=1, le=1 << 15)]
"""A number of subtasks or key groups."""

KeyGroup = Annotated[int, msgspec.Meta(ge=0, lt=1 << 15)]
"""Index of a key group or of a subtask."""

BlockBytes = Annotated[int, msgspec.Meta(ge=1, le=64 << 20)]
"""Number of bytes under one checksum. Reading any part of a block loads the whole block into memory."""

DurationMs = Annotated[float, msgspec.Meta(ge=0, le=float(1 << 53))]
"""A duration in milliseconds, up to the largest that a float represents exactly."""

TimeMs = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]
"""Milliseconds since 1970 UTC, up to the end of the year 9999, where calendars end."""

_T = TypeVar("_T")

_lock = ProcessLock()


def message_pack_decoder(
    type: type[_T],
    *,
    strict: bool = True,
    ext_hook: Callable[[int, memoryview], Any] | None = None,
) -> msgspec.msgpack.Decoder[_T]:
    """Make a decoder from MessagePack to a type.

    Args:
        type: Type of the decoded values.
        strict: Whether to reject values of a convertible type, such as a string for a number.
        ext_hook: Makes values of extension types from their code and bytes.
    """
    with _lock.current:
        return msgspec.msgpack.Decoder(type, strict=strict, ext_hook=ext_hook)


def json_decoder(type: type[_T]) -> msgspec.json.Decoder[_T]:
    """Make a decoder from JSON to a type."""
    with _lock.current:
        return msgspec.json.Decoder(type)
