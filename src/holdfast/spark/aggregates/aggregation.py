"""The operator that keeps aggregates of each key and yields those that a batch has changed."""

from collections.abc import Iterator, Mapping
from typing import Unpack

import pyarrow as pa

from holdfast.backends.arrow import gather
from holdfast.backends.descriptors import StateTtlConfig
from holdfast.backends.functions import FunctionInitializationContext
from holdfast.backends.keyed import Keys
from holdfast.spark.aggregates.accumulators import Accumulators
from holdfast.spark.aggregates.changes import AggregateChanges, ChangeOptions, check_own_states
from holdfast.spark.aggregates.descriptions import Aggregate
from holdfast.spark.operators import StatefulFunction

ROWS_AT_ONCE = 1 << 20
"""So many rows are gathered before they are folded: few large steps are faster than many small ones."""


_STATE = "aggregates"


class Aggregation(StatefulFunction):
    """Folds rows into the aggregates of each key, and yields the keys of the batch with their new values.

    Rows come as `operands_of` makes them, combined or single. The operator needs a key.

    Args:
        aggregates: The aggregates by name.
        ttl: How long the aggregates of a key live after its last row; None for ever.
        changes: `renamed`, `added` and `dropped`: how the aggregates differ from the stored ones, as for `KeyedRows.agg`.

    Raises:
        InvalidRequestError: The changes contradict the aggregates.
    """

    def __init__(
        self,
        aggregates: Mapping[str, Aggregate],
        *,
        ttl: StateTtlConfig | None = None,
        **changes: Unpack[ChangeOptions],
    ) -> None:
        self._aggregates = dict(aggregates)
        self._ttl = ttl
        self._changes = AggregateChanges.of(aggregates, changes)

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self._store = context.keyed_state_store
        check_own_states(self._store, [_STATE])
        self._accumulators = Accumulators(self._aggregates, context.input_schema)
        stored = self._store.specs().get(_STATE)
        self._state = self._store.get_reducing_state(
            self._accumulators.descriptor(_STATE, stored, self._changes, ttl=self._ttl)
        )

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        changed: list[Keys] = []
        for rows in gather(batches, ROWS_AT_ONCE):
            keys = self._store.keys(rows)
            self._state.columns.add(keys, self._accumulators.operands(rows))
            changed.append(keys)
        if not changed:
            return
        keys = changed[0]
        if len(changed) > 1:
            columns = zip(*(some.columns for some in changed), strict=True)
            keys = self._store.keys([pa.chunked_array(column) for column in columns])
        results = self._accumulators.results(self._state.columns.get(keys))
        yield pa.RecordBatch.from_arrays(
            [*keys.columns, *results.values()], names=[*self._store.key.names, *results]
        )
