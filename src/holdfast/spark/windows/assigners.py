"""Tumbling, sliding, session and count windows: as users declare them, and the windows of keys in a batch.

A window includes its start, not its end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.keyed import Keys
from holdfast.errors import InvalidRequestError

Times = npt.NDArray[np.int64]
"""Milliseconds since 1970."""

_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Window:
    """A window of event time.

    Python's datetimes are limited to the years 1 to 9999. A bound outside of them is the first or the last datetime.

    Attributes:
        start: The window's first instant, UTC.
        end: The first instant after it, UTC.
    """

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class CountWindow:
    """A window of rows of a key, which are numbered from 0.

    Attributes:
        start: The number of its first row.
        end: The number of the row after it.
    """

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class FixedWindows:
    """Windows of one length that begin in equal steps. Made by `tumbling_windows` and `sliding_windows`.

    Attributes:
        size_ms: Length of a window, milliseconds.
        slide_ms: Time between the starts of windows, milliseconds.
        offset_ms: Start of a window, milliseconds since 1970.

    Source:
        Flink, TumblingEventTimeWindows and SlidingEventTimeWindows.
    """

    size_ms: int
    slide_ms: int
    offset_ms: int = 0

    def __str__(self) -> str:
        """Description of the windows, stored with their state so that a restart can compare them."""
        size, slide, offset = (
            timedelta(milliseconds=length)
            for length in (self.size_ms, self.slide_ms, self.offset_ms % self.slide_ms)
        )
        kind = "tumbling windows" if size == slide else f"sliding windows every {slide}"
        return f"{kind} of {size}" + (f", offset {offset}" if offset else "")


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """Windows that end when a key has had no row for some time. Made by `session_windows`.

    Attributes:
        gap: That time, or the name of a column with the time of each row. Each row has a window of this length;
            windows of a key that meet are merged.

    Source:
        Flink, EventTimeSessionWindows and DynamicEventTimeSessionWindows.
    """

    gap: timedelta | str

    def __str__(self) -> str:
        """Description of the windows, as for `FixedWindows`."""
        if isinstance(self.gap, str):
            return f"session windows with the gap in column {self.gap!r}"
        return f"session windows with a gap of {self.gap}"


@dataclass(frozen=True, slots=True)
class CountWindows:
    """Windows of a number of rows of a key. Made by `count_windows`.

    Attributes:
        size: Number of rows of a window.
        slide: Number of rows between the ends of windows.

    Source:
        Flink, KeyedStream.countWindow.
    """

    size: int
    slide: int

    def __str__(self) -> str:
        """Description of the windows, as for `FixedWindows`."""
        every = "" if self.size == self.slide else f" every {self.slide} rows"
        return f"windows of {self.size} rows{every}"


WindowAssigner: TypeAlias = FixedWindows | SessionWindows | CountWindows


def tumbling_windows(size: timedelta, *, offset: timedelta = timedelta(0)) -> FixedWindows:
    """Windows of one length that follow each other without overlap.

    Args:
        size: Length of a window.
        offset: Shift of their starts, which without it are multiples of their length since 1970 UTC.

    Raises:
        InvalidRequestError: A duration is not in whole milliseconds, or the size is less than 1 ms.
    """
    return sliding_windows(size, size, offset=offset)


def sliding_windows(
    size: timedelta, slide: timedelta, *, offset: timedelta = timedelta(0)
) -> FixedWindows:
    """Windows of one length that overlap, or leave gaps.

    Args:
        size: Length of a window.
        slide: Time between the starts of windows. If it is longer than a window, some rows are in no window.
        offset: Shift of their starts, as for `tumbling_windows`.

    Raises:
        InvalidRequestError: A duration is not in whole milliseconds, or size or slide are less than 1 ms.
    """
    return FixedWindows(
        positive_ms("size", size), positive_ms("slide", slide), _whole_ms("offset", offset)
    )


def session_windows(gap: timedelta | str) -> SessionWindows:
    """Windows of activity of a key: consecutive rows at most a gap apart share a window.

    Args:
        gap: The gap, or the name of a column of day-time intervals with the gap after each row. Rows without a gap are
            in no window.

    Raises:
        InvalidRequestError: The gap is not in whole milliseconds, or less than 1 ms.
    """
    if not isinstance(gap, str):
        positive_ms("gap", gap)
    return SessionWindows(gap)


def count_windows(size: int, slide: int | None = None) -> CountWindows:
    """Windows of rows of a key: every `slide` rows, a window of the last `size` rows ends.

    Rows of a batch are numbered in order of time. The first windows have fewer rows if `slide` is less than `size`.

    Args:
        size: Number of rows of a window.
        slide: Number of rows between the ends of windows; None for `size`, so that each row is in one window. If it is
            greater, some rows are in no window.

    Raises:
        InvalidRequestError: A number is not an integer >= 1.
    """
    slide = size if slide is None else slide
    return CountWindows(positive_rows("size", size), positive_rows("slide", slide))


def positive_rows(name: str, number: int) -> int:
    """Return a number of rows, >= 1. Raises `InvalidRequestError`."""
    if type(number) is not int or number < 1:
        message = f"the {name} of windows must be a number of rows, an integer >= 1, got {number!r}"
        raise InvalidRequestError(message)
    return number


def positive_ms(name: str, duration: timedelta) -> int:
    """Return a duration in milliseconds, >= 1. Raises `InvalidRequestError`."""
    number = _whole_ms(name, duration)
    if number < 1:
        raise InvalidRequestError(f"the {name} of windows must be >= 1 ms, got {duration}")
    return number


def _whole_ms(name: str, duration: timedelta) -> int:
    if not isinstance(duration, timedelta) or duration % _MILLISECOND:
        raise InvalidRequestError(
            f"the {name} of windows must be a timedelta of whole milliseconds, got {duration!r}"
        )
    return duration // _MILLISECOND


@dataclass(frozen=True, slots=True)
class Spans:
    """Distinct windows of keys: the key and the namespace of each, its start, and its end, exclusive.

    Both are milliseconds, or row numbers of count windows.
    """

    keys: Keys
    starts: Times
    ends: Times

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, chosen: npt.NDArray[np.bool_]) -> "Spans":
        """Return the chosen windows, each with itself as its only row."""
        indices = np.flatnonzero(chosen)
        return Spans(self.keys.take(indices), self.starts[indices], self.ends[indices])

    def with_any(self, pairs: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return the windows that have such a row, given one flag for each row of their keys."""
        flags = np.zeros(len(self), np.bool_)
        flags[self.keys.codes[pairs]] = True
        return flags


@dataclass(frozen=True, slots=True)
class Assigned:
    """The windows that some rows belong to.

    Attributes:
        rows: For each pair of a row and a window, the row.
        spans: The distinct windows; the rows of their keys are these pairs.
    """

    rows: npt.NDArray[np.int64]
    spans: Spans


def in_namespaces(keys: Keys, indices: npt.NDArray[np.int64], columns: Sequence[Times]) -> Keys:
    """Return the distinct pairs of a key and a namespace of whole numbers, given both of each row."""
    return keys.with_columns(indices, [pa.array(column, pa.int64()) for column in columns])


class FixedSpans:
    """The tumbling or sliding windows of all keys, whose namespace in state is the window itself.

    In a batch `assign` is called first, `forget` last.
    """

    namespace = pa.schema([("start", pa.int64()), ("end", pa.int64())])

    def __init__(self, windows: FixedWindows) -> None:
        self._windows = windows

    def assign(
        self,
        keys: Keys,
        parts: Sequence[pa.RecordBatch],  # noqa: ARG002  # other windows depend on other columns
        times_ms: Times,
        expired_ms: int,
    ) -> Assigned:
        """Assign a batch's rows to windows, which exist from now on.

        Windows with an end up to `expired_ms` are expired. Rows that have no other window are left out.
        """
        size, slide = self._windows.size_ms, self._windows.slide_ms
        rows = np.arange(len(times_ms))
        starts = times_ms - np.mod(times_ms - self._windows.offset_ms, slide)  # of the last window
        if size != slide:
            every = starts[:, None] - slide * np.arange(-(-size // slide), dtype=np.int64)
            rows, columns = np.nonzero(every > times_ms[:, None] - size)
            starts = every[rows, columns]
        lives = starts + size > expired_ms
        if not lives.all():
            rows, starts = rows[lives], starts[lives]
        ends = starts + size
        return _with_bounds(rows, in_namespaces(keys, keys.codes[rows], [starts, ends]))

    def look_up(self, keys: Keys, namespace: Sequence[pa.Array]) -> Assigned:
        """Look up windows by their namespaces, a row for each; windows that don't exist are left out."""
        rows = np.arange(len(keys.codes))
        return _with_bounds(rows, keys.with_columns(keys.codes, namespace))

    def forget(self, spans: Spans) -> None:
        """Forget expired windows."""


def _with_bounds(rows: npt.NDArray[np.int64], windows: Keys) -> Assigned:
    starts, ends = (column.to_numpy() for column in windows.columns[-2:])
    return Assigned(rows, Spans(windows, starts, ends))
