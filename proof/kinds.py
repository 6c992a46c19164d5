"""Operators with all types of state, whose size is bounded, and their expected content.

Rows have the values 0, 1, 2, … in batches of `BATCH_ROWS`, and each value has a key. The output of a batch and the
states after it do not depend on the parallelism.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import holdfast
from holdfast import BroadcastProcessFunction, StatefulFunction
from holdfast.backends import (
    FunctionInitializationContext,
    ListState,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.backends.keys import key_group_of

BATCH_ROWS = 200
MAX_PARALLELISM = 128
ROWS = "key long, value long, rows long, total long"

_KEY = pa.schema([("key", pa.int64())])
_ROWS = pa.schema([(name, pa.int64()) for name in ("key", "value", "rows", "total")])
_TOTALS = pa.schema([("rows", pa.int64()), ("total", pa.int64())])
_SAMPLE_INTERVAL = 50
_MARK_INTERVAL = 100
_FACTOR = 7919


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the states.

    Attributes:
        keys: Number of keys; the values of a batch have different ones.
        rounds: Number of values of a key after which a timer clears its list and its map.
    """

    keys: int
    rounds: int

    @property
    def key_in_sql(self) -> str:
        """The SQL expression for the key of a value."""
        return f"value * {_FACTOR} % {self.keys}"

    @property
    def forgotten_after(self) -> int:
        """Number of values after which a timer fires, and the operator state drops a value."""
        return self.keys * self.rounds

    def key_of(self, value: int) -> int:
        """Return the key of a value."""
        return value * _FACTOR % self.keys

    def is_timed(self, value: Any, key: Any) -> Any:
        """Return whether a timer is registered with a value; also accepts arrays."""
        return value // self.keys % self.rounds == key % self.rounds

    def batch_of(self, values: pa.Array) -> int:
        """Return the first value of the batch."""
        return int(pc.max(values).as_py()) // BATCH_ROWS * BATCH_ROWS


class KeyedTotals(StatefulFunction):
    """Permanent totals, the last value, and lists and maps that timers clear."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        store = self.store = context.keyed_state_store
        self.totals = store.get_reducing_state(
            ReducingStateDescriptor("totals", {"rows": "count", "total": "sum"}, _TOTALS)
        )
        self.last = store.get_state(ValueStateDescriptor("last", pa.int64()))
        self.recent = store.get_list_state(ListStateDescriptor("recent", pa.int64()))
        self.places = store.get_map_state(MapStateDescriptor("places", pa.int64(), pa.int64()))
        self.timers = store.event_time_timers("forget")

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in pa.Table.from_batches(batches).combine_chunks().to_batches():
            yield self.process_batch(batch)

    def process_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Store all rows of the subtask in a batch; returns the totals of their keys."""
        values = batch["value"]
        fired = self.timers.columns.fire(self.sizes.batch_of(values))
        if len(fired):
            gone = self.store.keys(fired.key)
            self.recent.columns.clear(gone)
            self.places.columns.clear(gone)
        keys = self.store.keys(batch)
        self.totals.columns.add(keys, {"total": values})
        by_key = np.empty(len(values), np.int64)
        by_key[keys.codes] = values.to_numpy()
        self.last.columns.put(keys, by_key)
        self.recent.columns.append(keys, values)
        self.places.columns.put(keys, pc.bit_wise_and(values, 7), values)
        timed = np.flatnonzero(self.sizes.is_timed(by_key, keys.columns[0].to_numpy()))
        self.timers.columns.register(keys, by_key[timed] + self.sizes.forgotten_after, timed)
        totals = self.totals.columns.get(keys).flatten()
        return pa.record_batch([keys.columns[0], pa.array(by_key), *totals], schema=_ROWS)


class UnionKeyedTotals(KeyedTotals):
    """Also has a sample in a union list; each subtask keeps the values whose keys it owns."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        super().initialize_state(context)
        descriptor = ListStateDescriptor("shared sample", pa.int64())
        self.sample = context.operator_state_store.get_union_list_state(descriptor)
        groups = context.key_groups
        assert groups is not None
        self.groups = range(groups.start_key_group, groups.end_key_group + 1)

    def process_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        kept = [value for value in self.sample.get() if self._is_here(value)]
        self.sample.update(_sample(kept, batch["value"], self.sizes))
        return super().process_batch(batch)

    def _is_here(self, value: int) -> bool:
        key = {"key": self.sizes.key_of(value)}
        return key_group_of(key, _KEY, MAX_PARALLELISM) in self.groups


class ListKeyedTotals(KeyedTotals):
    """Also has a sample in a list, which does not allow another parallelism."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        super().initialize_state(context)
        self.sample = _list_of_sample(context)

    def process_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.sample.update(_sample(self.sample.get(), batch["value"], self.sizes))
        return super().process_batch(batch)


class Sample(StatefulFunction):
    """Returns rows unchanged, and keeps a sample of the last ones in a list."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.sample = _list_of_sample(context)

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in pa.Table.from_batches(batches).combine_chunks().to_batches():
            self.sample.update(_sample(self.sample.get(), batch["value"], self.sizes))
            yield batch


class Marks(BroadcastProcessFunction):
    """Gives each row the newest mark, which all subtasks have in a broadcast state."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        descriptor = MapStateDescriptor("marks", str, int)
        self.marks = context.operator_state_store.get_broadcast_state(descriptor)

    def process_broadcast(self, rows: pa.Table) -> None:
        for mark in rows["mark"].to_pylist():
            self.marks.put("newest", max(mark, self.marks.get("newest") or 0))
            self.marks.put(f"of {mark // _MARK_INTERVAL % 10}", mark)

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            newest = pa.array([self.marks.get("newest")] * len(batch), pa.int64())
            yield batch.append_column("mark", newest)


MARKS_OF_BATCH = f"value % {_MARK_INTERVAL} = 0"
"""The SQL condition for rows that are marks."""


def expected_output(batch: int, sizes: Sizes) -> list[tuple[int, ...]]:
    """Return the output of a batch, sorted: key, value, number and sum of the key's values, and mark of each row."""
    begin = batch * BATCH_ROWS
    newest = (begin + BATCH_ROWS - 1) // _MARK_INTERVAL * _MARK_INTERVAL
    rows = []
    for value in range(begin, begin + BATCH_ROWS):
        # A key occurs once in `keys` values.
        values = range(value, -1, -sizes.keys)
        rows.append((sizes.key_of(value), value, len(values), sum(values), newest))
    return sorted(rows)


def expected_states(batches: int, sizes: Sizes) -> dict[str, Any]:
    """Return the content of the states after a number of batches, by their names."""
    totals: dict[int, dict[str, int]] = {}
    last: dict[int, int] = {}
    recent: dict[int, list[int]] = {}
    places: dict[int, dict[int, int]] = {}
    timers: dict[int, int] = {}
    for begin in range(0, batches * BATCH_ROWS, BATCH_ROWS):
        for time in [time for time in timers if time <= begin]:
            key = timers.pop(time)
            recent.pop(key, None)
            places.pop(key, None)
        for value in range(begin, begin + BATCH_ROWS):
            key = sizes.key_of(value)
            total = totals.setdefault(key, {"rows": 0, "total": 0})
            total["rows"] += 1
            total["total"] += value
            last[key] = value
            recent.setdefault(key, []).append(value)
            places.setdefault(key, {})[value & 7] = value
            if sizes.is_timed(value, key):
                timers[value + sizes.forgotten_after] = key
    values = range(0, batches * BATCH_ROWS, _SAMPLE_INTERVAL)
    oldest = (batches - 1) * BATCH_ROWS - sizes.forgotten_after
    sample = [value for value in values if value >= oldest]
    marks = range(0, batches * BATCH_ROWS, _MARK_INTERVAL)
    return {
        "totals": totals,
        "last": last,
        "recent": recent,
        "places": places,
        "sample": sample,
        "shared sample": sample,
        "marks": {
            "newest": marks[-1],
            **{f"of {mark // _MARK_INTERVAL % 10}": mark for mark in marks},
        },
    }


def wrong_states(pointer: str, batches: int, sizes: Sizes, operators: dict[str, str]) -> list[str]:
    """Return the states with wrong content.

    Args:
        pointer: URI of the checkpoint.
        batches: Number of its batches.
        sizes: Sizes of the states.
        operators: The operator of each expected state.
    """
    expected = expected_states(batches, sizes)
    return [
        f"state {name!r} of {uid!r} in {pointer}"
        for name, uid in operators.items()
        if stored_state(pointer, uid, name) != expected[name]
    ]


def stored_state(pointer: str, uid: str, name: str) -> Any:
    """Return a state in the form of `expected_states`."""
    rows = holdfast.read_state(pointer, uid, name).to_pylist()
    if name == "sample":
        return sorted(row["value"] for row in rows)
    if (
        name == "shared sample"
    ):  # after a start each subtask stores the whole list until its next batch
        return sorted({row["value"] for row in rows})
    if name == "places":
        places: dict[int, dict[int, int]] = {}
        for row in rows:
            places.setdefault(row["key.key"], {})[row["sub.key"]] = row["value"]
        return places
    return {row["key"]: row["value"] for row in rows}


def _list_of_sample(context: FunctionInitializationContext) -> ListState:
    descriptor = ListStateDescriptor("sample", pa.int64())
    return context.operator_state_store.get_list_state(descriptor)


def _sample(kept: list[int], values: pa.Array, sizes: Sizes) -> list[int]:
    oldest = sizes.batch_of(values) - sizes.forgotten_after
    new = [value for value in values.to_pylist() if value % _SAMPLE_INTERVAL == 0]
    return [*(value for value in kept if value >= oldest), *new]
