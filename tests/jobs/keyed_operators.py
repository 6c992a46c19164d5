"""Operators with keyed state; a module of its own, so that executors can import it."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa

from holdfast import KeyedProcessFunction, StatefulFunction
from holdfast.backends import (
    FunctionInitializationContext,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)

TOTALS = pa.schema([("rows", pa.int64()), ("ids", pa.int64())])


class Totals(StatefulFunction):
    """Counts rows and adds up ids by key, in columns; yields what has changed."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.store = context.keyed_state_store
        self.totals = self.store.get_reducing_state(
            ReducingStateDescriptor("totals", {"rows": "count", "ids": "sum"}, TOTALS)
        )

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keys = self.store.keys(batch)
            self.totals.columns.add(keys, {"ids": batch["id"]})
            rows, ids = self.totals.columns.get(keys).flatten()
            yield pa.record_batch([keys.columns[0], rows, ids], ["key", "rows", "ids"])


class Days(KeyedProcessFunction):
    """Counts the rows of each name and day."""

    def open(self, context: FunctionInitializationContext) -> None:
        self.counts = context.keyed_state_store.get_state(ValueStateDescriptor("counts", int))

    def process_key(self, key: Any, rows: pa.RecordBatch) -> Iterable[Any]:
        assert key.day is None or isinstance(key.day, datetime)
        self.counts.update((self.counts.value() or 0) + rows.num_rows)
        yield key.name, key.day, self.counts.value()
