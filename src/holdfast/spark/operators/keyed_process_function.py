"""An operator that is called key by key, with timers."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, final

import pyarrow as pa

from holdfast.backends.arrow import gather
from holdfast.backends.functions import FunctionInitializationContext
from holdfast.backends.keyed import TimerService
from holdfast.spark.operators.functions import StatefulFunction
from holdfast.spark.operators.output_rows import OutputRows, Row
from holdfast.spark.operators.turns_of_keys import TimeDomain, TurnsOfKeys


class KeyedProcessFunction(StatefulFunction):
    """An operator that is called once for each key of a micro-batch, and for each timer that is due.

    `open` gets the states; in `process_key` and `on_timer` they have the values of the current key. These two
    methods return output rows, which are read before the next call: None for no rows, else tuples in
    the order of the output's columns, mappings by name, or rows of Arrow. The output has the columns of the
    input unless `stateful` was given another schema.

    A timer belongs to a key and a time: registered twice, it fires once. Timers need a `time_mode`: with
    `processing` there are timers of processing time, with `event` timers of both domains. They fire after the
    calls for all keys with rows: first timers of event time up to the watermark, then timers of processing
    time up to the time of the batch, both ascending. A timer that is registered while others fire waits for
    the next batch, even if it is due. A timer that is due fires, even if it is deleted in the meantime.

    Source:
        Flink, KeyedProcessFunction. Timers fire as those of Spark's StatefulProcessor do.
    """

    _context: FunctionInitializationContext
    _turns: TurnsOfKeys

    def open(self, context: FunctionInitializationContext) -> None:
        """Get the states, from `context.keyed_state_store`; called before any data."""

    @abstractmethod
    def process_key(self, key: Any, rows: pa.RecordBatch) -> Iterable[Row] | None:
        """Process the rows of a key; called once for each key of the batch.

        Args:
            key: The key's values as a named tuple, even if it has one column. The order of keys is arbitrary,
                but the same for the same rows.
            rows: All rows of the key in this batch, in the order of arrival, with all columns of the input.
        """

    def on_timer(self, key: Any, time_ms: int, domain: TimeDomain) -> Iterable[Row] | None:
        """Process a timer that fires; its key may have no rows in the batch, and no state.

        Args:
            key: The key's values, as in `process_key`.
            time_ms: The time that the timer was registered for, milliseconds since 1970.
            domain: Whether the timer fires by event time or processing time.
        """

    @final
    def register_event_time_timer(self, time_ms: int) -> None:
        """Register a timer of the current key, which fires once the watermark has reached the time.

        Args:
            time_ms: Milliseconds since 1970. A time that has passed is due in this batch.

        Raises:
            InvalidRequestError: `time_mode` is not `event`, or the time is not an integer.
        """
        self._turns.register("event", time_ms)

    @final
    def register_processing_time_timer(self, time_ms: int) -> None:
        """Register a timer of the current key, which fires in the first batch of this time or a later one.

        Args:
            time_ms: Milliseconds since 1970. A time that has passed is due in this batch.

        Raises:
            InvalidRequestError: `time_mode` is `none`, or the time is not an integer.
        """
        self._turns.register("processing", time_ms)

    @final
    def delete_event_time_timer(self, time_ms: int) -> None:
        """Delete a timer of the current key, if it exists. Raises as registering it does."""
        self._turns.delete("event", time_ms)

    @final
    def delete_processing_time_timer(self, time_ms: int) -> None:
        """Delete a timer of the current key, if it exists. Raises as registering it does."""
        self._turns.delete("processing", time_ms)

    @final
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        states = context.keyed_state_store
        timers: dict[TimeDomain, TimerService] = {}
        if self.time_mode == "event":
            timers["event"] = states.event_time_timers()
        if self.time_mode != "none":
            timers["processing"] = states.processing_time_timers()
        self._context = context
        self._turns = TurnsOfKeys(states, timers)
        self.open(context)

    @final
    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = self._context
        output = OutputRows(context.output_schema or context.input_schema)
        for returned in self._results(list(gather(batches))):
            if returned is not None:
                output.add(returned)
                if output.are_enough:
                    yield from output.take()
        self._turns.end()
        yield from output.take()

    def _results(self, parts: Sequence[pa.RecordBatch]) -> Iterator[Iterable[Row] | None]:
        """Yield the results of the calls: one for each key with rows, then one for each timer that is due."""
        context, turns = self._context, self._turns
        if parts:
            for key, rows in turns.of_rows(parts):
                yield self.process_key(key, rows)
        until_ms: dict[TimeDomain, int] = {
            "event": context.watermark,
            "processing": context.batch_time,
        }
        for key, time_ms, domain in turns.of_timers(until_ms):
            yield self.on_timer(key, time_ms, domain)
