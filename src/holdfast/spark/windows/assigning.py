"""Which windows rows belong to, by their times. A window has its start and not its end."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from holdfast.errors import InvalidRequestError

Times = npt.NDArray[np.int64]
"""Milliseconds since 1970."""

_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Window:
    """A window of event time.

    Python has no datetimes before the year 1 or after the year 9999. A bound that lies there is the first or the last
    datetime that there is.

    Attributes:
        start: The window's first instant, UTC.
        end: The first instant after it, UTC.
    """

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class FixedWindows:
    """Windows of one length, which begin in equal steps. Made by `tumbling_windows` and `sliding_windows`.

    Attributes:
        size_ms: How long a window is, milliseconds.
        slide_ms: How long after each other they begin, milliseconds.
        offset_ms: Where they begin, from 1970 on, milliseconds.

    Source:
        Flink, TumblingEventTimeWindows and SlidingEventTimeWindows.
    """

    size_ms: int
    slide_ms: int
    offset_ms: int = 0

    def __str__(self) -> str:
        """What they are; stored with their state, so that a restart knows whether they are the same."""
        size, slide, offset = (
            timedelta(milliseconds=length)
            for length in (self.size_ms, self.slide_ms, self.offset_ms % self.slide_ms)
        )
        kind = "tumbling windows" if size == slide else f"sliding windows every {slide}"
        return f"{kind} of {size}" + (f", offset {offset}" if offset else "")

    def assign(self, times_ms: Times) -> tuple[npt.NDArray[np.int64], Times]:
        """The windows of each time.

        Returns:
            For each pair of a time and a window the index of the time, and the start of the window.
        """
        last = times_ms - np.mod(times_ms - self.offset_ms, self.slide_ms)
        if self.size_ms == self.slide_ms:
            return np.arange(len(times_ms)), last
        steps = np.arange(-(-self.size_ms // self.slide_ms), dtype=np.int64)
        starts = last[:, None] - steps * self.slide_ms
        rows, columns = np.nonzero(starts > times_ms[:, None] - self.size_ms)
        return rows, starts[rows, columns]


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """Windows that end when a key has had no row for a while. Made by `session_windows`.

    Attributes:
        gap_ms: How long, milliseconds. Each row has a window of this length; those of a key that meet are merged.

    Source:
        Flink, EventTimeSessionWindows.
    """

    gap_ms: int

    def __str__(self) -> str:
        """As for `FixedWindows`."""
        return f"session windows with a gap of {timedelta(milliseconds=self.gap_ms)}"


WindowAssigner: TypeAlias = FixedWindows | SessionWindows


def tumbling_windows(size: timedelta, *, offset: timedelta = timedelta(0)) -> FixedWindows:
    """Windows of one length, one behind the other.

    Args:
        size: How long a window is.
        offset: Where windows begin: from 1970 on, UTC, in steps of their length, later by this.

    Raises:
        InvalidRequestError: A duration is no whole number of milliseconds, or the size is none.
    """
    return sliding_windows(size, size, offset=offset)


def sliding_windows(
    size: timedelta, slide: timedelta, *, offset: timedelta = timedelta(0)
) -> FixedWindows:
    """Windows of one length that overlap, or leave something out.

    Args:
        size: How long a window is.
        slide: How long after each other windows begin. If it is longer than they are, some rows are in none.
        offset: Where windows begin, as for `tumbling_windows`.

    Raises:
        InvalidRequestError: A duration is no whole number of milliseconds, or size or slide are none.
    """
    return FixedWindows(
        milliseconds("size", size), milliseconds("slide", slide), _whole("offset", offset)
    )


def session_windows(gap: timedelta) -> SessionWindows:
    """Windows of activity of a key: rows that are not further apart than the gap share one.

    Raises:
        InvalidRequestError: The gap is no whole number of milliseconds, or none.
    """
    return SessionWindows(milliseconds("gap", gap))


def milliseconds(what: str, duration: timedelta) -> int:
    """A duration in milliseconds. Raises `InvalidRequestError` if it isn't a whole number of them, at least one."""
    number = _whole(what, duration)
    if number < 1:
        message = f"the {what} of windows is {duration}; it must be at least a millisecond"
        raise InvalidRequestError(message)
    return number


def _whole(what: str, duration: timedelta) -> int:
    if not isinstance(duration, timedelta) or duration % _MILLISECOND:
        message = f"the {what} of windows is {duration!r}; give a timedelta of whole milliseconds"
        raise InvalidRequestError(message)
    return duration // _MILLISECOND
