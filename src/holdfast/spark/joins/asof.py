"""The as-of join: each row of the first stream with the latest row of the second that is not later."""

from collections.abc import Iterator, Sequence
from datetime import timedelta

import numpy as np
import pyarrow as pa

from holdfast.backends.keyed import Keys
from holdfast.errors import InvalidRequestError
from holdfast.spark.event_time import ceil_ms
from holdfast.spark.joins.join import Join, JoinKind, KeptRows
from holdfast.spark.joins.matching import Rows, match_latest

_MICROSECOND = timedelta(microseconds=1)


class AsofJoin(Join):
    """Joins each first row with the latest second row of its key whose time is not later.

    A row is emitted when the watermark has reached its time, so that no earlier row can follow. Second rows stay until a
    later one replaces them, or until the tolerance has passed. The other arguments are those of `Join`.

    Args:
        tolerance: The greatest difference of the times; None for no limit.

    Source:
        Flink, TemporalRowTimeJoinOperator.
    """

    kinds = ("inner", "left")

    def __init__(
        self,
        first_time: str,
        second_time: str,
        tolerance: timedelta | None,
        *,
        kind: JoinKind,
        second_key: Sequence[str],
    ) -> None:
        super().__init__(first_time, second_time, kind, second_key)
        if tolerance is not None and tolerance < timedelta(0):
            raise InvalidRequestError(f"tolerance must not be negative, got {tolerance!r}")
        self._tolerance = None if tolerance is None else tolerance // _MICROSECOND

    @property
    def description(self) -> str:
        limit = "" if self._tolerance is None else f" within {self._tolerance} microseconds"
        return f"a {self.kind} as-of join{limit}"

    def add(self, keys: Keys, first: KeptRows, second: KeptRows) -> Iterator[pa.RecordBatch]:
        for side, kept in ((self.first, first), (self.second, second)):
            new = np.arange(kept.stored, len(kept))
            side.write(keys, kept, new, np.zeros(len(new), np.bool_))
            side.timers.register(keys, ceil_ms(kept.times[new]), kept.codes[new])
        if self._tolerance is not None:
            new = np.arange(second.stored, len(second))
            expiry_ms = ceil_ms(second.times[new] + self._tolerance)
            self.second.timers.register(keys, expiry_ms, second.codes[new])
        return iter(())

    def expire(self) -> Iterator[pa.RecordBatch]:
        keys = self.fired_keys()
        if keys is None:
            return
        first, second = self.first.read(keys), self.second.read(keys)
        due = np.flatnonzero(ceil_ms(first.times) <= self.watermark_ms)
        matches = match_latest((first.codes[due], first.times[due]), second.by_arrival)
        if self._tolerance is not None and len(second):
            is_too_old = first.times[due] - second.times[matches] > self._tolerance
            matches = np.where(is_too_old, -1, matches)
        emitted = matches >= 0 if not self.is_outer[0] else np.ones(len(due), np.bool_)
        yield from self.joined_rows(first.rows, due[emitted], second.rows, matches[emitted])
        self.first.remove(keys, first, due)
        self.second.remove(keys, second, self._find_replaced(second, len(keys)))

    def _find_replaced(self, second: KeptRows, keys: int) -> Rows:
        """Return the second rows that no later row can match: a later one is in the past, or the tolerance has passed."""
        is_past = ceil_ms(second.times) <= self.watermark_ms
        latest = match_latest(
            (np.arange(keys), np.full(keys, 1000 * self.watermark_ms)), second.by_arrival
        )
        is_latest = np.zeros(len(second), np.bool_)
        is_latest[latest[latest >= 0]] = True
        is_replaced = is_past & ~is_latest
        if self._tolerance is not None:
            is_replaced |= ceil_ms(second.times + self._tolerance) <= self.watermark_ms
        return np.flatnonzero(is_replaced)
