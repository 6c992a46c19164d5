"""Session windows: windows of a key that meet are merged.

A session has a number: its start in the first batch that had rows of it. The number stays when the session grows, so
that its state need not be moved. When sessions meet, their state moves to the lowest of their numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.descriptors import MapStateDescriptor
from holdfast.backends.keyed import KeyedStateBackend, Keys, ReducingState, Timers
from holdfast.errors import InvalidRequestError
from holdfast.spark.row_order import column_of
from holdfast.spark.windows.assigners import (
    Assigned,
    SessionWindows,
    Spans,
    Times,
    in_namespaces,
    positive_ms,
)

_Indices = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]

SESSIONS = "sessions"
"""The name of the state with the sessions of each key."""

_SPAN = pa.struct([("start", pa.int64()), ("end", pa.int64())])
_NO_NUMBER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class _Sessions:
    """Sessions of keys: the index of each session's key, its start and end in milliseconds, and its number."""

    codes: _Indices
    starts: Times
    ends: Times
    numbers: Times

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, chosen: _Flags | _Indices) -> "_Sessions":
        return _Sessions(
            self.codes[chosen], self.starts[chosen], self.ends[chosen], self.numbers[chosen]
        )


class SessionSpans:
    """The session windows of all keys; methods as those of `FixedSpans`.

    Args:
        windows: The windows of each row.
        store: The store of the sessions of each key.
        states: The states of each session, which are moved when sessions are merged.
        timers: The timers of sessions.
        lateness_ms: Time from the end of a session to its last timer.
    """

    namespace = pa.schema([("session", pa.int64())])

    def __init__(
        self,
        windows: SessionWindows,
        store: KeyedStateBackend,
        states: Sequence[ReducingState],
        timers: Timers,
        lateness_ms: int,
    ) -> None:
        self._gap = windows.gap
        self._store = store
        self._states = [state.columns for state in states]
        self._timers = timers
        self._lateness_ms = lateness_ms
        self._sessions = store.get_map_state(
            MapStateDescriptor(SESSIONS, pa.int64(), _SPAN)
        ).columns

    def assign(
        self, keys: Keys, parts: Sequence[pa.RecordBatch], times_ms: Times, expired_ms: int
    ) -> Assigned:
        ends_ms = times_ms + self._gaps_ms(parts)
        rows = _Sessions(keys.codes, times_ms, ends_ms, np.full(len(times_ms), _NO_NUMBER))
        before = self._sessions_of(keys)
        merged, at = _merge(rows, before)
        at_of_rows, at_of_before = at[: len(rows)], at[len(rows) :]
        has_rows = np.zeros(len(merged), np.bool_)
        has_rows[at_of_rows] = True
        is_known = np.zeros(len(merged), np.bool_)
        is_known[at_of_before] = True
        lives = is_known | (merged.ends > expired_ms)

        after = merged.take(at_of_before)
        is_same = (before.starts == after.starts) & (before.ends == after.ends)
        is_moved = before.numbers != after.numbers
        self._delete_timers(keys, before.take(is_moved | (before.ends != after.ends)))
        self._move(keys, before.take(is_moved), after.numbers[is_moved])
        has_changed = lives & has_rows
        has_changed[at_of_before[is_same & ~is_moved]] = False
        self._put(keys, merged.take(has_changed))

        living = np.flatnonzero(lives[at_of_rows])
        sessions = merged.take(at_of_rows[living])
        return Assigned(living, _spans(keys, sessions))

    def look_up(self, keys: Keys, namespace: Sequence[pa.Array]) -> Assigned:
        (numbers,) = namespace
        bounds = self._sessions.get(keys, numbers)
        rows = np.flatnonzero(bounds.is_valid().to_numpy(zero_copy_only=False))
        starts, ends = _columns_of(bounds.drop_null())
        sessions = _Sessions(keys.codes[rows], starts, ends, numbers.to_numpy()[rows])
        return Assigned(rows, _spans(keys, sessions))

    def forget(self, spans: Spans) -> None:
        *columns, numbers = spans.keys.columns
        self._sessions.remove(self._store.keys(columns), numbers)

    def _gaps_ms(self, parts: Sequence[pa.RecordBatch]) -> Times | int:
        if isinstance(self._gap, timedelta):
            return positive_ms("gap", self._gap)
        column = column_of(parts, self._gap).cast(pa.duration("us")).cast(pa.int64())
        gaps_ms: Times = np.floor_divide(column.to_numpy(), 1000)
        if len(gaps_ms) and gaps_ms.min() < 1:
            raise InvalidRequestError(
                f"the gap of a session must be >= 1 ms, and column {self._gap!r} has {timedelta(milliseconds=int(gaps_ms.min()))}; "
                "make it null in rows that belong to no session, or greater"
            )
        return gaps_ms

    def _sessions_of(self, keys: Keys) -> _Sessions:
        items = self._sessions.items(keys)
        starts, ends = _columns_of(items.values)
        return _Sessions(items.indices, starts, ends, items.map_keys.to_numpy())

    def _put(self, keys: Keys, sessions: _Sessions) -> None:
        if len(sessions):
            bounds = pa.StructArray.from_arrays(
                [pa.array(sessions.starts), pa.array(sessions.ends)], fields=list(_SPAN)
            )
            self._sessions.put(keys, pa.array(sessions.numbers), bounds, sessions.codes)

    def _move(self, keys: Keys, sessions: _Sessions, numbers: Times) -> None:
        """Add the state of sessions to that of other sessions, which have these numbers."""
        if len(sessions):
            self._sessions.remove(keys, pa.array(sessions.numbers), sessions.codes)
            sources = in_namespaces(keys, sessions.codes, [sessions.numbers])
            for state in self._states:
                values = state.get(sources)
                state.clear(sources)
                moved = sources.rows.firsts[values.is_valid().to_numpy(zero_copy_only=False)]
                targets = in_namespaces(keys, sessions.codes[moved], [numbers[moved]])
                state.add(targets, values.drop_null())

    def _delete_timers(self, keys: Keys, sessions: _Sessions) -> None:
        if len(sessions):
            windows = in_namespaces(keys, sessions.codes, [sessions.numbers])
            last_ms = sessions.ends - 1
            for times_ms in {0, self._lateness_ms}:
                self._timers.delete(windows, last_ms + times_ms, windows.codes)


def _merge(rows: _Sessions, before: _Sessions) -> tuple[_Sessions, _Indices]:
    """Merge rows and sessions of a key that meet.

    Returns:
        The sessions, by key and time, and for each given row and session the index of its session. The number of a
        new session is its start.
    """
    codes = np.concatenate([rows.codes, before.codes])
    starts = np.concatenate([rows.starts, before.starts])
    ends = np.concatenate([rows.ends, before.ends])
    numbers = np.concatenate([rows.numbers, before.numbers])
    if not len(codes):
        return rows, np.empty(0, np.int64)
    order = np.lexsort((starts, codes))
    codes, starts, ends, numbers = codes[order], starts[order], ends[order], numbers[order]
    # The greatest end so far of each key: codes ascend, so a key's first end is above all ends of lower keys.
    distinct, rank = np.unique(ends, return_inverse=True)
    greatest = np.maximum.accumulate(codes * len(distinct) + rank)
    furthest = distinct[greatest - codes * len(distinct)]
    begins = np.ones(len(codes), np.bool_)
    begins[1:] = (codes[1:] != codes[:-1]) | (starts[1:] > furthest[:-1])
    firsts = np.flatnonzero(begins)
    number = np.minimum.reduceat(numbers, firsts)
    sessions = _Sessions(
        codes[firsts],
        starts[firsts],
        np.maximum.reduceat(ends, firsts),
        np.where(number == _NO_NUMBER, starts[firsts], number),
    )
    at = np.empty(len(order), np.int64)
    at[order] = np.cumsum(begins) - 1
    return sessions, at


def _spans(keys: Keys, sessions: _Sessions) -> Spans:
    """Return the distinct windows of sessions, which may repeat."""
    windows = in_namespaces(keys, sessions.codes, [sessions.numbers])
    firsts = windows.rows.firsts
    return Spans(windows, sessions.starts[firsts], sessions.ends[firsts])


def _columns_of(spans: pa.StructArray) -> tuple[Times, Times]:
    start, end = spans.flatten()
    return start.to_numpy(), end.to_numpy()
