"""The base of operators that process all keys of a batch at once, in columns."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import final

import pyarrow as pa

from holdfast.backends.arrow import gather
from holdfast.backends.functions import FunctionInitializationContext
from holdfast.backends.keyed import KeyedStateBackend, Keys
from holdfast.spark.aggregates import check_own_states
from holdfast.spark.operators import StatefulFunction


class KeyedBatchFunction(StatefulFunction):
    """An operator that gets the keys of a batch together.

    Attributes:
        state_names: The names of all its states; other states under its uid belong to another operator.
        store: The subtask's keyed states.
    """

    state_names: Sequence[str]
    store: KeyedStateBackend

    @abstractmethod
    def open(self, context: FunctionInitializationContext) -> None:
        """Get the states, from `store`; called before any data."""

    @abstractmethod
    def process_keys(self, keys: Keys, parts: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process the rows of a batch that has some, and yield output rows."""

    def expire(self) -> Iterator[pa.RecordBatch]:
        """Process the timers that the watermark fires, after the rows; called in each batch."""
        return iter(())

    @final
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.store = context.keyed_state_store
        check_own_states(self.store, self.state_names)
        self.open(context)

    @final
    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts = list(gather(batches))
        if parts:
            yield from self.process_keys(self.store.keys(pa.Table.from_batches(parts)), parts)
        yield from self.expire()
