"""Operators with every kind of state, whose states stay small while rows come and go, and what is in them, row by row.

Rows have the values 0, 1, 2, … in batches of `BATCH_ROWS`, and each value has a key. What comes out of a batch and
what is in the states behind it does not depend on the parallelism.
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
_SAMPLED = 50
_MARKED = 100
_FACTOR = 7919


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much there is in the states.

    Attributes:
        keys: How many keys there are; the values of a batch have different ones.
        rounds: After so many values of a key a timer clears its list and its map, once in as many.
    """

    keys: int
    rounds: int

    @property
    def key_in_sql(self) -> str:
        """The key of a value."""
        return f"value * {_FACTOR} % {self.keys}"

    @property
    def forgotten_after(self) -> int:
        """So many values later a timer fires, and the operator state forgets a value."""
        return self.keys * self.rounds

    def key_of(self, value: int) -> int:
        """The key of a value."""
        return value * _FACTOR % self.keys

    def is_timed(self, value: Any, key: Any) -> Any:
        """Whether a timer is registered with this value: numbers, or arrays of them."""
        return value // self.keys % self.rounds == key % self.rounds

    def batch_of(self, values: pa.Array) -> int:
        """The first value of the batch."""
        return int(pc.max(values).as_py()) // BATCH_ROWS * BATCH_ROWS


class ByKey(StatefulFunction):
    """Totals for ever, the last value, and lists and maps that timers clear."""

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
            yield self.changed(batch)

    def changed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Keep the rows, all that the subtask gets of a batch; gives the totals of their keys."""
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


class ByKeyWithUnion(ByKey):
    """Also a sample in a union list, of which each subtask keeps what has a key of its own."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        super().initialize_state(context)
        descriptor = ListStateDescriptor("shared sample", pa.int64())
        self.sample = context.operator_state_store.get_union_list_state(descriptor)
        groups = context.key_groups
        assert groups is not None
        self.groups = range(groups.start_key_group, groups.end_key_group + 1)

    def changed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        kept = [value for value in self.sample.get() if self._is_here(value)]
        self.sample.update(_sampled(kept, batch["value"], self.sizes))
        return super().changed(batch)

    def _is_here(self, value: int) -> bool:
        key = {"key": self.sizes.key_of(value)}
        return key_group_of(key, _KEY, MAX_PARALLELISM) in self.groups


class ByKeyWithList(ByKey):
    """Also a sample in a list, which does not allow another parallelism."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        super().initialize_state(context)
        self.sample = _list_of_sample(context)

    def changed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.sample.update(_sampled(self.sample.get(), batch["value"], self.sizes))
        return super().changed(batch)


class Sample(StatefulFunction):
    """Lets rows through, and keeps a sample of the last ones in a list."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.sample = _list_of_sample(context)

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in pa.Table.from_batches(batches).combine_chunks().to_batches():
            self.sample.update(_sampled(self.sample.get(), batch["value"], self.sizes))
            yield batch


class Marks(BroadcastProcessFunction):
    """Gives each row the newest mark, which all subtasks have in a broadcast state."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        descriptor = MapStateDescriptor("marks", str, int)
        self.marks = context.operator_state_store.get_broadcast_state(descriptor)

    def process_broadcast(self, rows: pa.Table) -> None:
        for mark in rows["mark"].to_pylist():
            self.marks.put("newest", max(mark, self.marks.get("newest") or 0))
            self.marks.put(f"of {mark // _MARKED % 10}", mark)

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            newest = pa.array([self.marks.get("newest")] * len(batch), pa.int64())
            yield batch.append_column("mark", newest)


MARKS_OF_BATCH = f"value % {_MARKED} = 0"
"""In SQL: which rows are marks."""


def expected_output(batch: int, sizes: Sizes) -> list[tuple[int, ...]]:
    """What comes of a batch: key, value, number and sum of the values of the key, and mark of each row, sorted."""
    begin = batch * BATCH_ROWS
    newest = (begin + BATCH_ROWS - 1) // _MARKED * _MARKED
    rows = []
    for value in range(begin, begin + BATCH_ROWS):
        # A key comes once in as many values as there are keys.
        values = range(value, -1, -sizes.keys)
        rows.append((sizes.key_of(value), value, len(values), sum(values), newest))
    return sorted(rows)


def expected_states(batches: int, sizes: Sizes) -> dict[str, Any]:
    """What is in the states after so many batches, by their names."""
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
    values = range(0, batches * BATCH_ROWS, _SAMPLED)
    oldest = (batches - 1) * BATCH_ROWS - sizes.forgotten_after
    sample = [value for value in values if value >= oldest]
    marks = range(0, batches * BATCH_ROWS, _MARKED)
    return {
        "totals": totals,
        "last": last,
        "recent": recent,
        "places": places,
        "sample": sample,
        "shared sample": sample,
        "marks": {"newest": marks[-1], **{f"of {mark // _MARKED % 10}": mark for mark in marks}},
    }


def wrong_states(pointer: str, batches: int, sizes: Sizes, operators: dict[str, str]) -> list[str]:
    """What does not hold what it must.

    Args:
        pointer: URI of the checkpoint.
        batches: How many batches it has seen.
        sizes: How much there is in the states.
        operators: The operator of each state that there must be.
    """
    expected = expected_states(batches, sizes)
    return [
        f"state {name!r} of {uid!r} in {pointer}"
        for name, uid in operators.items()
        if stored_state(pointer, uid, name) != expected[name]
    ]


def stored_state(pointer: str, uid: str, name: str) -> Any:
    """A state as `expected_states` has it."""
    rows = holdfast.read_state(pointer, uid, name).to_pylist()
    if name == "sample":
        return sorted(row["value"] for row in rows)
    if (
        name == "shared sample"
    ):  # after a start each subtask has stored all that it got, until its next batch
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


def _sampled(kept: list[int], values: pa.Array, sizes: Sizes) -> list[int]:
    oldest = sizes.batch_of(values) - sizes.forgotten_after
    new = [value for value in values.to_pylist() if value % _SAMPLED == 0]
    return [*(value for value in kept if value >= oldest), *new]
