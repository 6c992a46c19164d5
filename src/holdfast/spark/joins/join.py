"""The base of joins: rows of both streams are kept in state by key and time until no row can match them."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructField, StructType

from holdfast.backends.descriptors import MapStateDescriptor
from holdfast.backends.functions import FunctionInitializationContext
from holdfast.backends.keyed import KeyedStateBackend, Keys, MapColumns, Timers
from holdfast.errors import InvalidRequestError, StateMigrationError
from holdfast.spark.aggregates import ANOTHER_UID
from holdfast.spark.event_time import micros_of
from holdfast.spark.joins.matching import Rows
from holdfast.spark.keyed_batches import KeyedBatchFunction
from holdfast.spark.operators import FIRST, SECOND, rows_of_input
from holdfast.spark.row_order import places_by_key

JoinKind = Literal["inner", "left", "right", "full"]

_PLACE = pa.struct([("time", pa.int64()), ("number", pa.int64())])
"""The map key of a stored row: its time, and a number that distinguishes rows of that time."""

_JOIN = b"holdfast.join"
_OUTPUT_ROWS = 1 << 15


def joined_schema(
    first: StructType, second: StructType, key: Sequence[str], second_key: Sequence[str]
) -> StructType:
    """Return the columns of joined rows: those of both streams, and a key column of one name once.

    Raises:
        InvalidRequestError: The streams have other columns of the same name.
    """
    shared = _shared_key(key, second_key)
    others = [field for field in second if field.name not in shared]
    both = sorted(
        {field.name.lower() for field in first} & {field.name.lower() for field in others}
    )
    if both:
        raise InvalidRequestError(
            f"both streams have columns {both}; rename those of one stream, with withColumnRenamed, or drop them"
        )
    return StructType([StructField(field.name, field.dataType) for field in [*first, *others]])


def _shared_key(key: Sequence[str], second_key: Sequence[str]) -> set[str]:
    return {name for name, other in zip(key, second_key, strict=True) if name == other}


@dataclass(frozen=True, slots=True)
class KeptRows:
    """Rows of one stream: those of some keys in state, then those of the batch.

    Attributes:
        rows: The rows, with the columns of the stream.
        codes: The number of each row's key.
        times: Their times, microseconds since 1970.
        numbers: A number for each row; of rows of one key, later ones have greater numbers.
        has_matched: Whether the row has matched before; only kept for rows that are emitted without a match.
        stored: Number of the rows that are in state, which come first.
    """

    rows: pa.Table
    codes: Rows
    times: Rows
    numbers: Rows
    has_matched: npt.NDArray[np.bool_]
    stored: int

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def by_time(self) -> tuple[Rows, Rows]:
        """Keys and times, as `match_intervals` takes them."""
        return self.codes, self.times

    @property
    def by_arrival(self) -> tuple[Rows, Rows, Rows]:
        """Keys, times and numbers, as `match_latest` takes them: state has no order, and numbers are those of arrival."""
        return self.codes, self.times, self.numbers

    def places(self, at: npt.NDArray[np.int64]) -> pa.Array:
        """Return the map keys of rows."""
        columns = [pa.array(self.times[at]), pa.array(self.numbers[at])]
        return pa.StructArray.from_arrays(columns, fields=list(_PLACE))


class Side:
    """The rows of one stream in state, and the timers that delete them.

    Args:
        name: `FIRST` or `SECOND`.
        time: The column of event time.
        schema: The columns of the stream.
        note: A description of the join, stored with the rows.
    """

    def __init__(
        self, store: KeyedStateBackend, name: str, time: str, schema: pa.StructType, note: bytes
    ) -> None:
        self.schema = pa.schema(list(schema))
        self._name = name
        self._time = time
        self._row = pa.field("row", schema, metadata={_JOIN: note})
        value = pa.struct([self._row, ("has_matched", pa.bool_())])
        self._state: MapColumns = store.get_map_state(
            MapStateDescriptor(name, _PLACE, value)
        ).columns
        self.timers: Timers = store.event_time_timers(name).columns

    def input_rows(self, parts: Sequence[pa.RecordBatch]) -> tuple[pa.Table, Rows]:
        """Return the rows of the stream in a batch, and their positions in it."""
        own = rows_of_input(parts, self._name)
        return pa.Table.from_batches(own.parts, self.schema), own.positions

    def times_of(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return the times of rows, microseconds since 1970."""
        return micros_of(rows.column(self._time))

    def read(self, keys: Keys, rows: pa.Table | None = None, codes: Rows | None = None) -> KeptRows:
        """Return the stored rows of keys, and after them rows of a batch with the numbers of their keys."""
        entries = self._state.items(keys)
        stored = len(entries)
        times, numbers = (column.to_numpy() for column in entries.map_keys.flatten())
        values, has_matched = entries.values.flatten()
        all_rows = pa.Table.from_struct_array(values).cast(self.schema)
        flags = np.asarray(has_matched.to_numpy(zero_copy_only=False), bool)
        if rows is None or codes is None:
            return KeptRows(all_rows, entries.indices, times, numbers, flags, stored)
        next_numbers = np.zeros(len(keys), np.int64)
        np.maximum.at(next_numbers, entries.indices, numbers + 1)
        places = places_by_key(codes, np.argsort(codes, kind="stable"))
        return KeptRows(
            pa.concat_tables([all_rows, rows]),
            np.concatenate([entries.indices, codes]),
            np.concatenate([times, self.times_of(rows).to_numpy()]),
            np.concatenate([numbers, next_numbers[codes] + places]),
            np.concatenate([flags, np.zeros(len(codes), np.bool_)]),
            stored,
        )

    def write(
        self, keys: Keys, kept: KeptRows, at: Rows, has_matched: npt.NDArray[np.bool_]
    ) -> None:
        """Store rows, with the flags of these rows."""
        if not len(at):
            return
        rows = kept.rows.take(pa.array(at)).combine_chunks().to_struct_array().combine_chunks()
        values = pa.StructArray.from_arrays(
            [rows, pa.array(has_matched)], fields=[self._row, pa.field("has_matched", pa.bool_())]
        )
        self._state.put(keys, kept.places(at), values, kept.codes[at])

    def remove(self, keys: Keys, kept: KeptRows, at: Rows) -> None:
        """Delete rows from the state."""
        if len(at):
            self._state.remove(keys, kept.places(at), kept.codes[at])


class Join(KeyedBatchFunction):
    """Joins rows of two streams with equal keys by their times.

    A key with a null equals no key, as in SQL, and a row without a time matches no row.

    Args:
        first_time: The column of event time of the first stream.
        second_time: The column of event time of the second stream.
        kind: The rows to emit without a match: none, those of the first stream (left) or of the second (right), or both.
        second_key: The key's columns in the second stream.
    """

    time_mode = "event"
    state_names = (FIRST, SECOND)
    kinds: tuple[JoinKind, ...] = ("inner", "left", "right", "full")

    def __init__(
        self, first_time: str, second_time: str, kind: JoinKind, second_key: Sequence[str]
    ) -> None:
        if kind not in self.kinds:
            raise InvalidRequestError(f"how must be one of {self.kinds}, got {kind!r}")
        self.kind = kind
        self._time_names = (first_time, second_time)
        self.is_outer = kind in ("left", "full"), kind in ("right", "full")
        self._second_key = tuple(second_key)

    @property
    @abstractmethod
    def description(self) -> str:
        """The join, for errors; state can't move to a join with another one."""

    def open(self, context: FunctionInitializationContext) -> None:
        store = self.store
        self._check_description(store)
        note = self.description.encode()
        self.first, self.second = (
            Side(store, name, time, context.input_schema.field(name).type, note)
            for name, time in zip((FIRST, SECOND), self._time_names, strict=True)
        )
        self.watermark_ms = context.watermark
        shared = _shared_key(store.key.names, self._second_key)
        self._second_names = [name for name in self.second.schema.names if name not in shared]
        self._shared = [name for name in self.first.schema.names if name in shared]

    def _check_description(self, store: KeyedStateBackend) -> None:
        for name, spec in store.specs().items():
            notes = [(field.metadata or {}).get(_JOIN) for field in spec.values]
            for before in (note.decode() for note in notes if note):
                if before != self.description:
                    raise StateMigrationError(
                        f"the stored rows of {name!r} are those of {before}, and the operator now is {self.description}; state "
                        f"can't move to another join. Use the stored one, or {ANOTHER_UID}"
                    )

    def process_keys(self, keys: Keys, parts: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Add the rows of a batch; those that can't match any row are not kept."""
        is_null_key = np.zeros(len(keys), np.bool_)
        for column in keys.columns:
            is_null_key |= column.is_null().to_numpy(zero_copy_only=False)
        added = []
        for index, side in enumerate((self.first, self.second)):
            rows, positions = side.input_rows(parts)
            codes = keys.codes[positions]
            can_match = side.times_of(rows).is_valid().to_numpy() & ~is_null_key[codes]
            if not can_match.all():
                if self.is_outer[index]:
                    yield from self.single_rows(index, rows.filter(pa.array(~can_match)))
                rows, codes = rows.filter(pa.array(can_match)), codes[can_match]
            added.append((rows, codes))
        (first, first_codes), (second, second_codes) = added
        if len(first_codes) or len(second_codes):
            yield from self.add(
                keys,
                self.first.read(keys, first, first_codes),
                self.second.read(keys, second, second_codes),
            )

    @abstractmethod
    def add(self, keys: Keys, first: KeptRows, second: KeptRows) -> Iterator[pa.RecordBatch]:
        """Store the rows of a batch, and yield the rows that are complete at once."""

    def fired_keys(self) -> Keys | None:
        """Return the keys whose timers the watermark fires; None without one."""
        fired = [side.timers.fire(self.watermark_ms) for side in (self.first, self.second)]
        if not any(len(timers) for timers in fired):
            return None
        columns = zip(*(timers.key for timers in fired), strict=True)
        return self.store.keys([pa.concat_arrays(column) for column in columns])

    def joined_rows(
        self, first: pa.Table, first_at: Rows, second: pa.Table, second_at: Rows
    ) -> Iterator[pa.RecordBatch]:
        """Yield joined rows; a negative position means no row."""
        for start in range(0, len(first_at), _OUTPUT_ROWS):
            part = slice(start, start + _OUTPUT_ROWS)
            left, right = _take(first, first_at[part]), _take(second, second_at[part])
            columns: dict[str, pa.ChunkedArray] = dict(
                zip(left.schema.names, left.columns, strict=True)
            )
            for name in self._shared:
                columns[name] = pc.coalesce(left.column(name), right.column(name))
            columns |= {name: right.column(name) for name in self._second_names}
            yield from pa.table(columns).combine_chunks().to_batches()

    def single_rows(self, index: int, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield rows of the first stream (index 0) or of the second one, without a match."""
        own, none = np.arange(len(rows)), np.full(len(rows), -1)
        if index == 0:
            return self.joined_rows(rows, own, self.second.schema.empty_table(), none)
        return self.joined_rows(self.first.schema.empty_table(), none, rows, own)


def _take(rows: pa.Table, at: Rows) -> pa.Table:
    return rows.take(pa.array(at, mask=at < 0))
