"""The rows of a state in a column family.

    key     sort key, 8 bytes, big-endian: the first 2 are the key group | id columns
    value   time of the last change, if rows expire                      | value columns

These are rows of a `RowForm`, which are equal if and only if their bytes are:

    fixed       if all columns are numbers or times: a head, and for each column 1 byte (0 null, 1 a value) and the
                value, little-endian
    otherwise   a head, and a MessagePack array of the row's cells; types without cells are an Arrow IPC stream of a
                row, as extension 1

A head is a number of 8 bytes: the sort key before a key, the time before a value that expires.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.arrow import refuse_compressed
from holdfast.backends.keyed.columns import (
    from_arrow,
    from_cells,
    numpy_type,
    take_or_null,
    to_arrow,
    to_cells,
)
from holdfast.backends.keyed.folding import fold_into
from holdfast.backends.keyed.rocksdb_database import Family
from holdfast.backends.keyed.table import (
    GROUP,
    STEP,
    Flags,
    Identities,
    Operation,
    SortKeys,
    TableRows,
    TableSpec,
    time_part,
)
from holdfast.backends.keys import KeyGroupRange
from holdfast.common import message_pack_decoder

_SORT_KEY = ">u8"
"""The head of keys, big-endian because RocksDB sorts by bytes."""

_TIME = "<i8"
"""The head of values that expire."""

_HEAD_BYTES = 8
_ROW = 1
_WRITE_ROWS = 1 << 14
_SWEPT_ROWS = 10_000
"""Number of rows that each snapshot checks for expiry."""

_MAX_SINGLE_DELETES = 100

_STEP_BYTES = 16 << 20
"""Approximate limit of the bytes that are read at a time, however few rows they are."""


class RowForm:
    """The encoding of rows with these columns, and a head, if they have one."""

    def __init__(self, fields: Sequence[pa.Field], head: str | None) -> None:
        self._types = [field.type for field in fields]
        self._head = None if head is None else np.dtype(head)
        plain = [numpy_type(type) for type in self._types]
        known = [kind.newbyteorder("<") for kind in plain if kind is not None]
        self._record: np.dtype[Any] | None = None
        if len(known) == len(plain):
            parts: list[tuple[str, Any]] = [] if head is None else [("head", head)]
            for number, kind in enumerate(known):
                parts += [(f"has {number}", "u1"), (f"value {number}", kind)]
            self._record = np.dtype(parts)

    def encode(
        self, columns: Sequence[pa.Array], count: int, head: npt.NDArray[Any] | None = None
    ) -> list[bytes]:
        """Encode each of `count` rows, with its head."""
        if self._record is not None:
            return self._encode_fixed(self._record, columns, count, head)
        rows = map(_ENCODER.encode, zip(*map(to_cells, columns), strict=True))
        if head is None or self._head is None:
            return list(rows)
        heads = _slices(head.astype(self._head).tobytes(), _HEAD_BYTES)
        return [first + row for first, row in zip(heads, rows, strict=True)]

    def decode(self, rows: Sequence[bytes]) -> tuple[pa.Array, ...]:
        if self._record is None:
            skipped = 0 if self._head is None else _HEAD_BYTES
            cells = [_DECODER.decode(memoryview(row)[skipped:]) for row in rows]
            return tuple(
                from_cells([row[number] for row in cells], type)
                for number, type in enumerate(self._types)
            )
        if not self._types:
            return ()
        records = np.frombuffer(b"".join(rows), self._record) if rows else np.empty(0, self._record)
        columns = []
        for number, type in enumerate(self._types):
            present = records[f"has {number}"].astype(np.bool_)
            value = np.ascontiguousarray(records[f"value {number}"])
            columns.append(to_arrow(value, type, None if present.all() else present))
        return tuple(columns)

    def heads(self, rows: Sequence[bytes]) -> npt.NDArray[Any]:
        assert self._head is not None  # callers check
        whole = b"".join([row[:_HEAD_BYTES] for row in rows])
        return np.frombuffer(whole, self._head).astype(self._head.newbyteorder("="))

    @staticmethod
    def _encode_fixed(
        record: np.dtype[Any],
        columns: Sequence[pa.Array],
        count: int,
        head: npt.NDArray[Any] | None,
    ) -> list[bytes]:
        if not record.itemsize:
            return [b""] * count
        records = np.zeros(count, record)
        if head is not None:
            records["head"] = head
        for number, column in enumerate(columns):
            kind = record[f"value {number}"]
            if not count:
                continue
            data = column.buffers()[1]
            if data is None:  # all values are null
                continue
            values = np.frombuffer(data, kind, count, column.offset * kind.itemsize)
            if column.null_count:
                present = column.is_valid().to_numpy(zero_copy_only=False)
                records[f"has {number}"] = present
                records[f"value {number}"] = np.where(present, values, kind.type(0))
            else:
                records[f"has {number}"] = 1
                records[f"value {number}"] = values
        return _slices(records.tobytes(), record.itemsize)


def _slices(whole: bytes, width: int) -> list[bytes]:
    slices: list[bytes] = np.frombuffer(whole, f"V{width}").tolist()
    return slices


def _pack_row(row: Any) -> msgspec.msgpack.Ext:
    """Encode a row that is an Arrow array. Raises `TypeError` for other types."""
    if not isinstance(row, pa.Array):
        raise TypeError(f"{type(row)} is not a cell")
    batch = pa.record_batch([row], ["row"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return msgspec.msgpack.Ext(_ROW, sink.getvalue().to_pybytes())


def _unpack_row(code: int, data: memoryview) -> pa.Array:
    """Decode a row that is an Arrow array. Raises `ValueError` for other extensions."""
    if code != _ROW:
        raise ValueError(f"extension {code} is not a row")
    stored = bytes(data)
    # Cells are never compressed, and Arrow would allocate any size they declare.
    refuse_compressed(stored)
    with pa.ipc.open_stream(pa.py_buffer(stored)) as stream:
        return stream.read_next_batch().column(0)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_pack_row)
_DECODER = message_pack_decoder(list, ext_hook=_unpack_row)


class RocksDBTable:
    """A table in a column family. Appended values are folded at once. `now_ms` returns the time of the batch."""

    def __init__(
        self, spec: TableSpec, family: Family, key_groups: KeyGroupRange, now_ms: Callable[[], int]
    ) -> None:
        self.spec = spec
        self._family = family
        self._now_ms = now_ms
        self._key_groups = key_groups
        self._keys = RowForm(spec.id_fields, _SORT_KEY)
        self._values = RowForm(tuple(spec.values), None if spec.ttl_ms is None else _TIME)

    def get(
        self, identities: Identities, *, include_expired: bool = False
    ) -> tuple[Flags, tuple[pa.Array, ...]]:
        present, rows = self._find_rows(
            self._encode_keys(identities), include_expired=include_expired
        )
        return present, self._to_columns(present, rows)

    def write(
        self,
        identities: Identities,
        values: Sequence[pa.Array],
        operation: Operation | npt.NDArray[np.uint8] = Operation.PUT,
    ) -> None:
        operations = np.broadcast_to(np.asarray(operation, np.uint8), len(identities))
        keys = self._encode_keys(identities)
        appended = operations == Operation.APPEND
        times = None
        if appended.any():
            present, stored = self._find_rows(keys)
            before = self._to_columns(present, stored)
            values = fold_into(before, values, present & appended, self.spec)
            if self.spec.ttl_ms is not None:
                times = np.full(len(keys), self._now_ms(), np.int64)
                latest = times.copy()
                latest[present] = np.maximum(times[present], self._values.heads(stored))
                times[appended] = latest[appended]  # clocks can be set back
        deleted = operations == Operation.DELETE
        if deleted.all():
            self._family.write((), (), keys)
            return
        rows = self._encode_values(values, len(keys), times)
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
        ranges = zip(_encode_sort_keys(first), _encode_sort_keys(end), strict=True)
        rows: Iterable[tuple[bytes, bytes]] = self._family.ranges(ranges)
        if endings is not None:
            wanted = {number.to_bytes(2, "big") for number in np.flatnonzero(endings).tolist()}
            rows = (row for row in rows if row[0][6:_HEAD_BYTES] in wanted)
        chosen = list(rows)
        return self._to_rows(chosen) if include_expired else self._live_rows(chosen)

    def scan(self, step_rows: int = 1 << 20) -> Iterator[TableRows]:
        for step in self._steps(step_rows):
            rows = self._live_rows(step)
            if len(rows):
                yield rows

    def restore(self, chunks: Iterable[TableRows]) -> None:
        for chunk in chunks:
            keys = self._encode_keys(chunk.identities)
            rows = self._encode_values(chunk.values, len(keys), chunk.times_ms)
            for at in range(0, len(keys), _WRITE_ROWS):
                step = slice(at, at + _WRITE_ROWS)
                self._family.write(keys[step], rows[step])

    def all_rows(self, step_rows: int = 1 << 16) -> Iterator[TableRows]:
        return map(self._to_rows, self._steps(step_rows))

    def delete_up_to(self, time_ms: int) -> None:
        part = int(time_part(np.array([time_ms]))[0])
        for group in self._nonempty_groups():
            first = group * GROUP
            edges = [(_encode_sort_key(first), _encode_sort_key(first + part + STEP))]
            keys = [key for key, _ in self._family.ranges(edges)]
            last = _encode_sort_key(first + part)
            late = [key for key in keys if key >= last]
            due = len(keys) - len(late)
            if due > _MAX_SINGLE_DELETES:
                self._family.delete_range(_encode_sort_key(first), last)
                keys = late
            times = self._keys.decode(late)[-1].to_numpy() if late else np.empty(0, np.int64)
            late = list(itertools.compress(late, times <= time_ms))
            self._family.write((), (), keys[: len(keys) - len(times)] + late)

    def earliest_time(self) -> int | None:
        sort_keys = {int.from_bytes(key[:_HEAD_BYTES], "big") for key in self._first_keys()}
        if not sort_keys:
            return None
        step = min(sort_key % GROUP for sort_key in sort_keys) // STEP * STEP
        edges = [
            (_encode_sort_key(first), _encode_sort_key(first + STEP))
            for first in sorted(sort_key - sort_key % GROUP + step for sort_key in sort_keys)
        ]
        keys = [key for key, _ in self._family.ranges(edges)]
        return int(self._keys.decode(keys)[-1].to_numpy().min())

    def delete_expired(self, after: bytes) -> bytes:
        """Check the rows after the key at which the last call stopped, and delete the expired ones.

        Returns the key at which this call stopped. It is empty before the table and at its end.
        """
        end = first_key(self._key_groups.end_key_group + 1)
        start = after or first_key(self._key_groups.start_key_group)
        rows = list(itertools.islice(self._family.ranges([(start, end)]), _SWEPT_ROWS))
        is_alive = self._is_alive(self._values.heads([value for _, value in rows]))
        expired = [key for key, _ in itertools.compress(rows, ~is_alive)]
        if expired:
            self._family.write((), (), expired)
        return rows[-1][0] if len(rows) == _SWEPT_ROWS else b""

    def _encode_keys(self, identities: Identities) -> list[bytes]:
        return self._keys.encode(identities.columns, len(identities), identities.sort_keys)

    def _encode_values(
        self, values: Sequence[pa.Array], count: int, times: npt.NDArray[np.int64] | None = None
    ) -> list[bytes]:
        """Encode values; if rows expire, with these times or the time of the batch."""
        if self.spec.ttl_ms is None:
            return self._values.encode(values, count)
        if times is None:
            times = np.full(count, self._now_ms(), np.int64)
        return self._values.encode(values, count, times)

    def _find_rows(
        self, keys: list[bytes], *, include_expired: bool = False
    ) -> tuple[Flags, list[bytes]]:
        """Return which keys have a row, and the bytes of these rows."""
        values = self._family.get(keys)
        rows = [value for value in values if value is not None]
        if len(rows) == len(values):
            present = np.ones(len(values), np.bool_)
        else:
            present = np.fromiter((value is not None for value in values), np.bool_, len(values))
        if self.spec.ttl_ms is not None and not include_expired:
            is_alive = self._is_alive(self._values.heads(rows))
            present[present] = is_alive
            rows = list(itertools.compress(rows, is_alive))
        return present, rows

    def _to_columns(self, present: Flags, rows: list[bytes]) -> tuple[pa.Array, ...]:
        """Decode rows to columns as long as `present`; null for missing rows."""
        columns = self._values.decode(rows)
        if len(rows) == len(present):
            return columns
        positions = np.full(len(present), -1)
        positions[present] = np.arange(len(rows))
        return tuple(take_or_null(from_arrow(column), positions, column.type) for column in columns)

    def _live_rows(self, rows: Sequence[tuple[bytes, bytes]]) -> TableRows:
        """Decode the rows that have not expired."""
        if self.spec.ttl_ms is not None:
            is_alive = self._is_alive(self._values.heads([value for _, value in rows]))
            rows = list(itertools.compress(rows, is_alive))
        return self._to_rows(rows)

    def _to_rows(self, rows: Sequence[tuple[bytes, bytes]]) -> TableRows:
        keys = [key for key, _ in rows]
        values = [value for _, value in rows]
        identities = Identities(self._keys.heads(keys), self._keys.decode(keys))
        times = None if self.spec.ttl_ms is None else self._values.heads(values)
        return TableRows(identities, self._values.decode(values), times)

    def _is_alive(self, times: npt.NDArray[np.int64]) -> Flags:
        assert self.spec.ttl_ms is not None  # callers check
        is_alive: Flags = times > self._now_ms() - self.spec.ttl_ms
        return is_alive

    def _steps(self, step_rows: int) -> Iterator[list[tuple[bytes, bytes]]]:
        """Iterate over all rows, about `step_rows` at a time; rows with equal sort keys stay together."""
        start, end = self._key_groups.start_key_group, self._key_groups.end_key_group + 1
        step: list[tuple[bytes, bytes]] = []
        size = 0
        for row in self._family.ranges(
            [(_encode_sort_key(start * GROUP), _encode_sort_key(end * GROUP))]
        ):
            is_full = len(step) >= step_rows or size >= _STEP_BYTES
            if is_full and row[0][:_HEAD_BYTES] != step[-1][0][:_HEAD_BYTES]:
                yield step
                step, size = [], 0
            step.append(row)
            size += len(row[0]) + len(row[1])
        if step:
            yield step

    def _first_keys(self) -> Iterator[bytes]:
        """Iterate over the first key of each nonempty key group."""
        group, last = self._key_groups.start_key_group, self._key_groups.end_key_group
        while group <= last:
            edges = [(_encode_sort_key(group * GROUP), _encode_sort_key((last + 1) * GROUP))]
            key = next((key for key, _ in self._family.ranges(edges)), None)
            if key is None:
                return
            yield key
            group = int.from_bytes(key[:2], "big") + 1

    def _nonempty_groups(self) -> list[int]:
        return [int.from_bytes(key[:2], "big") for key in self._first_keys()]


def first_key(key_group: int) -> bytes:
    """Return a lower bound of the keys of a key group."""
    return _encode_sort_key(key_group * GROUP)


def _encode_sort_key(sort_key: int) -> bytes:
    return sort_key.to_bytes(_HEAD_BYTES, "big")


def _encode_sort_keys(sort_keys: npt.NDArray[Any]) -> list[bytes]:
    return [_encode_sort_key(sort_key) for sort_key in sort_keys.tolist()]
