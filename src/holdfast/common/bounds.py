"""Bounds of stored numbers: each by itself, and against the stream that it is about. Pure, no I/O.

A right checksum says that a file is as it was written, but not who wrote it. Later reads rely on these
numbers without another check.
"""

from typing import Annotated

import msgspec

MOST = 2**63 - 1
"""The greatest number of 64 bits in any language that reads these files."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
"""A number of bytes, elements or rows, a position, or an id."""

Parallelism = Annotated[int, msgspec.Meta(ge=1, le=1 << 15)]
"""A number of subtasks or key groups."""

KeyGroup = Annotated[int, msgspec.Meta(ge=0, lt=1 << 15)]
"""A key group's number, or a subtask's."""

BlockBytes = Annotated[int, msgspec.Meta(ge=1, le=64 << 20)]
"""Bytes under one checksum: a read of a small part reads so many bytes into memory."""

DurationMs = Annotated[float, msgspec.Meta(ge=0, le=float(1 << 53))]
"""A duration in milliseconds, up to the bound at which floats can tell each millisecond from the next."""

TimeMs = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]
"""Milliseconds since 1970 UTC, up to the end of the year 9999: calendars have no more."""
