"""An operator whose states stay as large as they are while rows come and go, and what they must then hold.

Rows have the values 0, 1, 2, … in batches of `BATCH_ROWS`, and each value has a key.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import holdfast
from holdfast.backends import FunctionInitializationContext, ListStateDescriptor, MapStateDescriptor
from holdfast.backends.keyed_state import ReducingStateDescriptor, ValueStateDescriptor
from holdfast.spark import StatefulFunction

UID = "endless"
BATCH_ROWS = 200
KEYS = 2_000
SCHEMA = "key long, rows long, total long"
KEY_OF_VALUE = f"value * 7919 % {KEYS}"
"""In SQL. The values of a batch have different keys."""

_TOTALS = pa.schema([("rows", pa.int64()), ("total", pa.int64())])
_SAMPLED = 50
_ROUNDS = 6
_FORGOTTEN_AFTER = _ROUNDS * KEYS
"""So many values later the list and the map of a key are cleared, by a timer, once in so many rounds."""


class Endless(StatefulFunction):
    """Totals for ever; values, lists, maps and timers of each key, and an operator state that has a sample."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.sample = context.operator_state_store.get_list_state(
            ListStateDescriptor("sample", pa.int64())
        )
        self.store = context.keyed_state_store
        self.totals = self.store.get_reducing_state(
            ReducingStateDescriptor("totals", {"rows": "count", "total": "sum"}, _TOTALS)
        )
        self.last = self.store.get_state(ValueStateDescriptor("last", pa.int64()))
        self.recent = self.store.get_list_state(ListStateDescriptor("recent", pa.int64()))
        self.places = self.store.get_map_state(MapStateDescriptor("places", pa.int64(), pa.int64()))
        self.timers = self.store.event_time_timers("forget")

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in pa.Table.from_batches(batches).combine_chunks().to_batches():
            yield self._changed(batch)

    def _changed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        values = batch["value"]
        begin = pc.max(values).as_py() // BATCH_ROWS * BATCH_ROWS
        fired = self.timers.columns.fire(begin)
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
        is_timed = by_key // KEYS % _ROUNDS == keys.columns[0].to_numpy() % _ROUNDS
        timed = np.flatnonzero(is_timed)
        self.timers.columns.register(keys, by_key[timed] + _FORGOTTEN_AFTER, timed)
        kept = [value for value in self.sample.get() if value >= begin - _FORGOTTEN_AFTER]
        new = [value for value in values.to_pylist() if value % _SAMPLED == 0]
        self.sample.update([*kept, *new])
        rows, total = self.totals.columns.get(keys).flatten()
        return pa.record_batch([keys.columns[0], rows, total], ["key", "rows", "total"])


def wrong_states(pointer: str, batches: int) -> list[str]:
    """Names of the states that don't hold what they must after so many batches.

    Args:
        pointer: URI of the checkpoint.
        batches: How many batches it has seen.
    """
    must = _expected(batches)
    return [name for name, expected in must.items() if _stored(pointer, name) != expected]


def _stored(pointer: str, name: str) -> Any:
    table = holdfast.read_state(pointer, UID, name)
    rows = table.to_pylist()
    if name == "sample":
        return sorted(row["value"] for row in rows)
    if name == "places":
        places: dict[int, dict[int, int]] = {}
        for row in rows:
            places.setdefault(row["key.key"], {})[row["sub.key"]] = row["value"]
        return places
    return {row["key"]: row["value"] for row in rows}


def _expected(batches: int) -> dict[str, Any]:
    """What the states must hold, row by row."""
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
            key = value * 7919 % KEYS
            total = totals.setdefault(key, {"rows": 0, "total": 0})
            total["rows"] += 1
            total["total"] += value
            last[key] = value
            recent.setdefault(key, []).append(value)
            places.setdefault(key, {})[value & 7] = value
            if value // KEYS % _ROUNDS == key % _ROUNDS:
                timers[value + _FORGOTTEN_AFTER] = key
    end = (batches - 1) * BATCH_ROWS
    sample = range(0, batches * BATCH_ROWS, _SAMPLED)
    return {
        "totals": totals,
        "last": last,
        "recent": recent,
        "places": places,
        "sample": [value for value in sample if value >= end - _FORGOTTEN_AFTER],
    }
