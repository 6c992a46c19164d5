"""The rows of a state in a column family.

key     sort key, 8 bytes, big-endian: so its first 2 are the key group | id columns (see `row_bytes`)
value   time of the last change, if rows live for a time                | columns of values
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.keyed.columns import from_arrow, take_or_null
from holdfast.backends.keyed.folding import fold_into
from holdfast.backends.keyed.rocksdb.database import Family
from holdfast.backends.keyed.rocksdb.row_bytes import SORT_KEY, TIME, RowForm
from holdfast.backends.keyed.table import (
    Flags,
    Identities,
    Operation,
    SortKeys,
    TableRows,
    TableSpec,
)
from holdfast.backends.keyed.timer_order import GROUP, STEP, time_part
from holdfast.backends.keys import KeyGroupRange

_KEY_BYTES = 8
_WRITE_ROWS = 1 << 14
_SWEPT_ROWS = 10_000
"""So many rows are looked at for expired ones with each snapshot."""

_MOST_ROWS_DELETED_ONE_BY_ONE = 100

_STEP_BYTES = 16 << 20
"""Rows that are given out at a time have about so many bytes, however few they are then."""


class RocksDBTable:
    """A table in a column family. What is appended is folded at once.

    Args:
        spec: What the table holds.
        family: The column family that has the table's rows.
        key_groups: The key groups whose rows count.
        now_ms: Says the time of the batch.
    """

    def __init__(
        self,
        spec: TableSpec,
        family: Family,
        key_groups: KeyGroupRange,
        now_ms: Callable[[], int],
    ) -> None:
        self._spec = spec
        self._family = family
        self._now_ms = now_ms
        self._key_groups = key_groups
        self._keys = RowForm(spec.id_fields, SORT_KEY)
        self._values = RowForm(tuple(spec.values), None if spec.ttl_ms is None else TIME)

    @property
    def spec(self) -> TableSpec:
        return self._spec

    def get(
        self, identities: Identities, *, include_expired: bool = False
    ) -> tuple[Flags, tuple[pa.Array, ...]]:
        present, held = self._held(self._keys_of(identities), include_expired=include_expired)
        return present, self._columns_of(present, held)

    def write(
        self,
        identities: Identities,
        values: Sequence[pa.Array],
        operation: Operation | npt.NDArray[np.uint8] = Operation.PUT,
    ) -> None:
        operations = np.broadcast_to(np.asarray(operation, np.uint8), len(identities))
        keys = self._keys_of(identities)
        appended = operations == Operation.APPEND
        times = None
        if appended.any():
            present, held = self._held(keys)
            before = self._columns_of(present, held)
            values = fold_into(before, values, present & appended, self._spec)
            if self._spec.ttl_ms is not None:
                times = np.full(len(keys), self._now_ms(), np.int64)
                latest = times.copy()
                latest[present] = np.maximum(times[present], self._values.heads(held))
                times[appended] = latest[appended]  # clocks go back
        deleted = operations == Operation.DELETE
        if deleted.all():
            self._family.write((), (), keys)
            return
        rows = self._values_of(values, len(keys), times)
        if not deleted.any():
            self._family.write(keys, rows)
            return
        kept_keys, kept_rows = (list(itertools.compress(each, ~deleted)) for each in (keys, rows))
        self._family.write(kept_keys, kept_rows, list(itertools.compress(keys, deleted)))

    def rows_between(
        self,
        first: SortKeys,
        end: SortKeys,
        *,
        endings: Flags | None = None,
        include_expired: bool = False,
    ) -> TableRows:
        ranges = zip(_places(first), _places(end), strict=True)
        rows: Iterable[tuple[bytes, bytes]] = self._family.ranges(ranges)
        if endings is not None:
            wanted = {number.to_bytes(2, "big") for number in np.flatnonzero(endings).tolist()}
            rows = (row for row in rows if row[0][6:_KEY_BYTES] in wanted)
        chosen = list(rows)
        return self._rows(chosen) if include_expired else self._living(chosen)

    def scan(self, step_rows: int = 1 << 20) -> Iterator[TableRows]:
        for step in self._steps(step_rows):
            rows = self._living(step)
            if len(rows):
                yield rows

    def restore(self, chunks: Iterable[TableRows]) -> None:
        """Take over rows of a checkpoint, as they were."""
        for chunk in chunks:
            keys = self._keys_of(chunk.identities)
            rows = self._values_of(chunk.values, len(keys), chunk.times_ms)
            for at in range(0, len(keys), _WRITE_ROWS):
                step = slice(at, at + _WRITE_ROWS)
                self._family.write(keys[step], rows[step])

    def everything(self, step_rows: int = 1 << 16) -> Iterator[TableRows]:
        """All rows, also those whose time is over."""
        for step in self._steps(step_rows):
            yield self._rows(step)

    def forget_up_to(self, time_ms: int) -> None:
        part = int(time_part(np.array([time_ms]))[0])
        for group in self._filled_groups():
            first = group * GROUP
            edges = [(_place(first), _place(first + part + STEP))]
            keys = [key for key, _ in self._family.ranges(edges)]
            last = _place(first + part)
            late = [key for key in keys if key >= last]
            due = len(keys) - len(late)
            if due > _MOST_ROWS_DELETED_ONE_BY_ONE:
                self._family.delete_range(_place(first), last)
                keys = late
            times = self._keys.decode(late)[-1].to_numpy() if late else np.empty(0, np.int64)
            late = list(itertools.compress(late, times <= time_ms))
            self._family.write((), (), keys[: len(keys) - len(times)] + late)

    def earliest_time(self) -> int | None:
        places = {int.from_bytes(key[:_KEY_BYTES], "big") for key in self._first_keys()}
        if not places:
            return None
        step = min(place % GROUP for place in places) // STEP * STEP
        edges = [
            (_place(first), _place(first + STEP))
            for first in sorted(place - place % GROUP + step for place in places)
        ]
        keys = [key for key, _ in self._family.ranges(edges)]
        return int(self._keys.decode(keys)[-1].to_numpy().min())

    def delete_expired(self, after: bytes) -> bytes:
        """Look at some rows, and delete those whose time is over.

        Args:
            after: The key that the last look ended at; empty at first.

        Returns:
            The key that this look ended at; empty if it came to the end.
        """
        end = first_key(self._key_groups.end_key_group + 1)
        start = after or first_key(self._key_groups.start_key_group)
        rows = list(itertools.islice(self._family.ranges([(start, end)]), _SWEPT_ROWS))
        living = self._lives(self._values.heads([value for _, value in rows]))
        expired = [key for key, _ in itertools.compress(rows, ~living)]
        if expired:
            self._family.write((), (), expired)
        return rows[-1][0] if len(rows) == _SWEPT_ROWS else b""

    def _keys_of(self, identities: Identities) -> list[bytes]:
        return self._keys.encode(identities.columns, len(identities), identities.sort_keys)

    def _values_of(
        self,
        values: Sequence[pa.Array],
        count: int,
        times: npt.NDArray[np.int64] | None = None,
    ) -> list[bytes]:
        """The bytes of values; of a table whose rows live for a time with these times, or that of the batch."""
        if self._spec.ttl_ms is None:
            return self._values.encode(values, count)
        if times is None:
            times = np.full(count, self._now_ms(), np.int64)
        return self._values.encode(values, count, times)

    def _held(
        self, keys: list[bytes], *, include_expired: bool = False
    ) -> tuple[Flags, list[bytes]]:
        """Which keys have a row, and the bytes of these rows."""
        rows = self._family.get(keys)
        held = [row for row in rows if row is not None]
        if len(held) == len(rows):
            present = np.ones(len(rows), np.bool_)
        else:
            present = np.fromiter((row is not None for row in rows), np.bool_, len(rows))
        if self._spec.ttl_ms is not None and not include_expired:
            living = self._lives(self._values.heads(held))
            present[present] = living
            held = list(itertools.compress(held, living))
        return present, held

    def _columns_of(self, present: Flags, held: list[bytes]) -> tuple[pa.Array, ...]:
        """The columns of rows; null where none is present."""
        columns = self._values.decode(held)
        if len(held) == len(present):
            return columns
        where = np.full(len(present), -1)
        where[present] = np.arange(len(held))
        return tuple(take_or_null(from_arrow(column), where, column.type) for column in columns)

    def _living(self, rows: Sequence[tuple[bytes, bytes]]) -> TableRows:
        """Rows without those whose time is over."""
        if self._spec.ttl_ms is not None:
            living = self._lives(self._values.heads([value for _, value in rows]))
            rows = list(itertools.compress(rows, living))
        return self._rows(rows)

    def _rows(self, rows: Sequence[tuple[bytes, bytes]]) -> TableRows:
        keys = [key for key, _ in rows]
        values = [value for _, value in rows]
        identities = Identities(self._keys.heads(keys), self._keys.decode(keys))
        times = None if self._spec.ttl_ms is None else self._values.heads(values)
        return TableRows(identities, self._values.decode(values), times)

    def _lives(self, times: npt.NDArray[np.int64]) -> Flags:
        assert self._spec.ttl_ms is not None  # else nobody asks
        living: Flags = times > self._now_ms() - self._spec.ttl_ms
        return living

    def _steps(self, step_rows: int) -> Iterator[list[tuple[bytes, bytes]]]:
        """All rows, about so many at a time; those of one sort key stay together."""
        start, end = self._key_groups.start_key_group, self._key_groups.end_key_group + 1
        step: list[tuple[bytes, bytes]] = []
        size = 0
        for row in self._family.ranges([(_place(start * GROUP), _place(end * GROUP))]):
            is_full = len(step) >= step_rows or size >= _STEP_BYTES
            if is_full and row[0][:_KEY_BYTES] != step[-1][0][:_KEY_BYTES]:
                yield step
                step, size = [], 0
            step.append(row)
            size += len(row[0]) + len(row[1])
        if step:
            yield step

    def _first_keys(self) -> Iterator[bytes]:
        """The first key of each key group that has rows."""
        group, last = self._key_groups.start_key_group, self._key_groups.end_key_group
        while group <= last:
            edges = [(_place(group * GROUP), _place((last + 1) * GROUP))]
            key = next((key for key, _ in self._family.ranges(edges)), None)
            if key is None:
                return
            yield key
            group = int.from_bytes(key[:2], "big") + 1

    def _filled_groups(self) -> list[int]:
        return [int.from_bytes(key[:2], "big") for key in self._first_keys()]


def first_key(key_group: int) -> bytes:
    """Before all keys of the key group."""
    return _place(key_group * GROUP)


def _place(sort_key: int) -> bytes:
    return sort_key.to_bytes(_KEY_BYTES, "big")


def _places(sort_keys: npt.NDArray[Any]) -> list[bytes]:
    return [_place(sort_key) for sort_key in sort_keys.tolist()]
