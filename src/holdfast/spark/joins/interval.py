"""The interval join: rows whose times differ by no more than an interval."""

from collections.abc import Iterator, Sequence
from datetime import timedelta

import numpy as np
import pyarrow as pa

from holdfast.backends.keyed import Keys
from holdfast.errors import InvalidRequestError
from holdfast.spark.event_time import ceil_ms
from holdfast.spark.joins.join import Join, JoinKind, KeptRows
from holdfast.spark.joins.matching import Pairs, match_intervals

_MICROSECOND = timedelta(microseconds=1)


class IntervalJoin(Join):
    """Joins rows whose times differ by at least `lower` and at most `upper`: second time minus first time.

    Pairs are emitted at once. A row without a match is emitted, if `kind` includes it, when the watermark shows that no
    match can follow; then each row is deleted. The other arguments are those of `Join`.

    Source:
        Flink, IntervalJoinOperator.
    """

    def __init__(
        self,
        first_time: str,
        second_time: str,
        lower: timedelta,
        upper: timedelta,
        *,
        kind: JoinKind,
        second_key: Sequence[str],
    ) -> None:
        super().__init__(first_time, second_time, kind, second_key)
        if lower > upper:
            raise InvalidRequestError(f"lower must not be after upper, got {lower!r} and {upper!r}")
        self._lower, self._upper = lower // _MICROSECOND, upper // _MICROSECOND

    @property
    def description(self) -> str:
        return f"a {self.kind} interval join from {self._lower} to {self._upper} microseconds"

    def add(self, keys: Keys, first: KeptRows, second: KeptRows) -> Iterator[pa.RecordBatch]:
        pairs = self._new_pairs(first, second)
        yield from self.joined_rows(first.rows, pairs.first, second.rows, pairs.second)
        for index, (side, kept, matched, expiry) in enumerate(
            (
                (self.first, first, pairs.first, first.times + self._upper),
                (self.second, second, pairs.second, second.times - self._lower),
            )
        ):
            has_matched = kept.has_matched.copy()
            if self.is_outer[index]:
                has_matched[matched] = True
            changed = np.flatnonzero(has_matched != kept.has_matched)
            new = np.arange(kept.stored, len(kept))
            written = np.union1d(changed, new)
            side.write(keys, kept, written, has_matched[written])
            side.timers.register(keys, ceil_ms(expiry[new]), kept.codes[new])

    def _new_pairs(self, first: KeptRows, second: KeptRows) -> Pairs:
        """Return the pairs with a row of the batch: new first rows with all second rows, stored ones with new ones."""
        bounds = (self._lower, self._upper)
        new = match_intervals(
            (first.codes[first.stored :], first.times[first.stored :]), second.by_time, *bounds
        )
        old = match_intervals(
            (first.codes[: first.stored], first.times[: first.stored]),
            (second.codes[second.stored :], second.times[second.stored :]),
            *bounds,
        )
        return Pairs(
            np.concatenate([new.first + first.stored, old.first]),
            np.concatenate([new.second, old.second + second.stored]),
        )

    def expire(self) -> Iterator[pa.RecordBatch]:
        keys = self.fired_keys()
        if keys is None:
            return
        for index, (side, offset) in enumerate(
            ((self.first, self._upper), (self.second, -self._lower))
        ):
            kept = side.read(keys)
            is_expired = ceil_ms(kept.times + offset) <= self.watermark_ms
            side.remove(keys, kept, np.flatnonzero(is_expired))
            if self.is_outer[index]:
                unmatched = np.flatnonzero(is_expired & ~kept.has_matched)
                yield from self.single_rows(index, kept.rows.take(pa.array(unmatched)))
