"""The operators of `KeyedRows.deduplicate`: one row of each key passes, later rows are dropped unless they are newer.

The keys of a batch are looked up and written at once. In event time a key has a timer, which deletes it.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import StructType

from holdfast.backends.arrow import take_rows
from holdfast.backends.descriptors import StateTtlConfig, ValueStateDescriptor
from holdfast.backends.functions import FunctionInitializationContext
from holdfast.backends.keyed import Keys, Timers, ValueColumns
from holdfast.errors import InvalidRequestError, StateMigrationError
from holdfast.spark.aggregates import ANOTHER_UID
from holdfast.spark.event_time import ceil_ms, micros_of, watermark_delay_ms
from holdfast.spark.keyed_batches import KeyedBatchFunction
from holdfast.spark.row_order import Rows, check_order, column_of, greatest_of, ranks_of

Keep = Literal["first", "last"]

_MILLISECOND = timedelta(milliseconds=1)


def deduplication_of(
    schema: StructType,
    *,
    keep: Keep,
    by: str | None,
    ttl: timedelta | StateTtlConfig | None,
    time: str | None,
) -> "FirstRows | LatestRows":
    """Return the operator for rows with a schema. Arguments and errors are those of `KeyedRows.deduplicate`."""
    if ttl is not None and not isinstance(ttl, timedelta | StateTtlConfig):
        raise InvalidRequestError(f"ttl must be a timedelta or a StateTtlConfig, got {ttl!r}")
    if (keep, by is None) not in {("first", True), ("last", False)}:
        raise InvalidRequestError(
            f"deduplicate passes the first row of each key with keep='first', or each newer row with keep='last' and "
            f"by= a column, got keep={keep!r} and by={by!r}"
        )
    if by is not None:
        check_order(schema, by)
    ttl_ms = 0
    if time is not None:
        ttl_ms = _event_ttl_ms(schema, ttl, time)
        ttl = None
        if by not in (None, time):
            raise InvalidRequestError(
                f"with keep='last' keys expire by the column by={by!r}, or in processing time; got time={time!r}: pass the "
                "same column twice, or leave out time="
            )
    if isinstance(ttl, timedelta):
        ttl = StateTtlConfig(ttl)
    if by is None:
        return FirstRows(ttl=ttl, time=time, ttl_ms=ttl_ms)
    return LatestRows(by, ttl=ttl, time=time, ttl_ms=ttl_ms)


def _event_ttl_ms(schema: StructType, ttl: timedelta | StateTtlConfig | None, time: str) -> int:
    """Return the time to live in event time, by default the watermark's delay."""
    if isinstance(ttl, StateTtlConfig):
        raise InvalidRequestError(
            f"a StateTtlConfig is in processing time; pass ttl= a timedelta for time={time!r}, or leave out time="
        )
    if ttl is not None:
        if ttl < _MILLISECOND or ttl % _MILLISECOND:
            raise InvalidRequestError(
                f"ttl in event time must be whole milliseconds, >= 1, got {ttl!r}"
            )
        return ttl // _MILLISECOND
    delay_ms = watermark_delay_ms(schema[time]) if time in schema.names else None
    if delay_ms is None:
        raise InvalidRequestError(
            f"column {time!r} has no watermark, whose delay is the default of ttl; call withWatermark first, or pass ttl="
        )
    return delay_ms


class _Deduplication(KeyedBatchFunction):
    """Chooses at most one row of each key in a batch.

    Args:
        ttl: Time to live of a key in processing time; None for no limit.
        time: The column of event time, if keys expire by it.
        ttl_ms: Time to live of a key in event time.
    """

    def __init__(self, *, ttl: StateTtlConfig | None, time: str | None, ttl_ms: int) -> None:
        self._ttl = ttl
        self._time = time
        self._ttl_ms = ttl_ms
        if time is not None:
            self.time_mode = "event"

    @abstractmethod
    def _value_type(self, schema: pa.Schema) -> pa.DataType:
        """Return the type of the value that state has for each key."""

    @abstractmethod
    def _choose(self, keys: Keys, parts: Sequence[pa.RecordBatch]) -> tuple[Rows, Rows]:
        """Update the state, and return the keys that a row passes for, ascending, and the row of each."""

    @abstractmethod
    def _is_expired(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Return for keys whose timers have fired whether they have expired."""

    @property
    def state_name(self) -> str:
        """The name of the only state, and of the timers."""
        return self.state_names[0]

    def open(self, context: FunctionInitializationContext) -> None:
        stored = self.store.specs()
        had_timers = any(spec.kind == "timers" for spec in stored.values())
        if self.state_name in stored and had_timers != (self._time is not None):
            before = "expire" if had_timers else "don't expire"
            raise StateMigrationError(
                f"the stored keys {before} in event time, and the operator now has time={self._time!r}; pass the same "
                f"time as before, or {ANOTHER_UID}"
            )
        kind = self._value_type(context.input_schema)
        descriptor = ValueStateDescriptor(self.state_name, kind, ttl=self._ttl)
        self._state: ValueColumns = self.store.get_state(descriptor).columns
        self._watermark = context.watermark

    def process_keys(self, keys: Keys, parts: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        chosen, rows = self._choose(keys, parts)
        if self._time is not None and len(chosen):
            times_ms = self._expiry_ms(column_of(parts, self._time).take(pa.array(rows)))
            self._timers().register(keys, times_ms, chosen)
        if len(rows):
            yield from take_rows(parts, np.sort(rows))

    def expire(self) -> Iterator[pa.RecordBatch]:
        if self._time is not None and len(fired := self._timers().fire(self._watermark)):
            keys = self.store.keys(list(fired.key))
            self._state.clear(keys.take(np.flatnonzero(self._is_expired(keys))))
        return iter(())

    def _timers(self) -> Timers:
        return self.store.event_time_timers(self.state_name).columns

    def _expiry_ms(self, times: pa.Array) -> Rows:
        """Return when keys expire, milliseconds since 1970, by the times of their rows; without a time it is 1970."""
        return ceil_ms(micros_of(times).fill_null(0).to_numpy()) + self._ttl_ms


class FirstRows(_Deduplication):
    """Passes the first row of each key, in the order of arrival."""

    state_names = ("seen",)

    def _value_type(self, schema: pa.Schema) -> pa.DataType:  # noqa: ARG002  # the other class needs it
        return pa.bool_()

    def _choose(self, keys: Keys, parts: Sequence[pa.RecordBatch]) -> tuple[Rows, Rows]:  # noqa: ARG002
        new = np.flatnonzero(self._state.get(keys).is_null().to_numpy(zero_copy_only=False))
        self._state.put(keys.take(new), pa.array(np.ones(len(new), np.bool_)))
        return new, keys.rows.firsts[new]

    def _is_expired(self, keys: Keys) -> npt.NDArray[np.bool_]:
        return np.ones(len(keys), np.bool_)


class LatestRows(_Deduplication):
    """Passes a row that is greater in a column than all earlier rows of its key; null is less than all values.

    Of several such rows in a batch the greatest passes, and of equal ones the first to arrive. The other arguments are
    those of `FirstRows`.

    Args:
        by: The column.
    """

    state_names = ("latest",)

    def __init__(
        self, by: str, *, ttl: StateTtlConfig | None, time: str | None, ttl_ms: int
    ) -> None:
        super().__init__(ttl=ttl, time=time, ttl_ms=ttl_ms)
        self._by = by

    def _value_type(self, schema: pa.Schema) -> pa.DataType:
        return pa.struct([(self._by, schema.field(self._by).type)])

    def _choose(self, keys: Keys, parts: Sequence[pa.RecordBatch]) -> tuple[Rows, Rows]:
        values = column_of(parts, self._by)
        known = self._state.get(keys)
        ranks = ranks_of(pa.concat_arrays([known.field(0), values]))
        known_ranks, row_ranks = ranks[: len(keys)], ranks[len(keys) :]
        known_ranks[known.is_null().to_numpy(zero_copy_only=False)] = -1
        greatest = greatest_of(keys, row_ranks)
        chosen = np.flatnonzero(row_ranks[greatest] > known_ranks)
        rows = greatest[chosen]
        latest = pa.StructArray.from_arrays([values.take(pa.array(rows))], names=[self._by])
        self._state.put(keys.take(chosen), latest)
        return chosen, rows

    def _is_expired(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Return whether the latest row has expired; a timer that fires may be that of an earlier row."""
        known = self._state.get(keys)
        return self._expiry_ms(known.field(0)) <= self._watermark
