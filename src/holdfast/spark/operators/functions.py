"""The classes that user code implements to run as an operator with state."""

import copyreg
import dataclasses
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, Self, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.arrow import gather, take_rows
from holdfast.backends.functions import CheckpointedFunction, FunctionInitializationContext
from holdfast.backends.keyed import KeyedListState, Keys, MapState, TimerService, ValueState
from holdfast.errors import InvalidRequestError
from holdfast.spark.operators.key_loop import KeyLoop, TimeDomain, named_key
from holdfast.spark.operators.output_rows import OutputRows, Row
from holdfast.spark.operators.two_inputs import FIRST, SECOND, rows_of_input

# Classes of the main script are pickled by value. A dataclass marks fields without a default with this object;
# with a copy of the object, all fields would seem to have a default.
copyreg.pickle(type(dataclasses.MISSING), lambda _: "MISSING")


class StatefulFunction(CheckpointedFunction):
    """An operator with state. One fresh copy runs in each subtask for each micro-batch.

    Attributes:
        time_mode: The time that fires the function's timers. Spark has to plan batches without rows for them:
            `none` without timers, `processing` for the time of batches, `event` for the watermark. In
            event time the function gets no late rows.
        keeps_late_rows: Whether the function gets late rows in event time, too, and compares times with
            `context.times.late_watermark` itself.
        late_rows: Number of late rows of the batch that the function has dropped itself.
    """

    time_mode: Literal["none", "processing", "event"] = "none"
    keeps_late_rows: bool = False
    late_rows: int = 0

    @abstractmethod
    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Turn the subtask's rows of one micro-batch into the rows for the sink.

        Called once a micro-batch, also when the subtask has no rows. It must read `batches` to the end.
        The checkpoint holds the state as it is when this method returns.

        Args:
            batches: The rows, with the schema `context.input_schema`; there may be no batch, one or many.

        Yields:
            Batches of the output schema, which is the schema of the input unless `stateful` was given another.
        """


class BroadcastProcessFunction(StatefulFunction):
    """An operator with a second, small stream, whose rows all go to every subtask.

    Use it for rules that change while the job runs. All subtasks must process these rows in the same way,
    so that a broadcast state is the same in all of them.

    Source:
        Flink, BroadcastProcessFunction.
    """

    @abstractmethod
    def process_broadcast(self, rows: pa.Table) -> None:
        """Process the broadcast rows of one micro-batch; called before `process`.

        Args:
            rows: The rows, with the columns of `context.broadcast_schema`; may be empty.
        """


class KeyedFunction(StatefulFunction):
    """The base of functions that are called for one key after the other, and for each timer that is due.

    `open` gets the states; in calls for a key they have the values of that key. These calls return output rows, which
    are read before the next call: None for no rows, else tuples in the order of the output's columns, mappings by name,
    or rows of Arrow. The output has the columns of the input unless the operator was given another schema.

    A timer belongs to a key and a time: registered twice, it fires once. Timers need a `time_mode`: with
    `processing` there are timers of processing time, with `event` timers of both domains. They fire after the
    calls for all keys with rows: first timers of event time up to the watermark, then timers of processing
    time up to the time of the batch, both ascending. A timer that is registered while others fire waits for
    the next batch, even if it is due. A timer that is due fires, even if it is deleted in the meantime.
    """

    _context: FunctionInitializationContext
    _loop: KeyLoop
    _timers: dict[TimeDomain, TimerService]
    _is_processing = False

    def open(self, context: FunctionInitializationContext) -> None:
        """Get the states, from `context.keyed_state_store`; called before any data."""

    def on_timer(self, key: Any, time_ms: int, domain: TimeDomain) -> Iterable[Row] | None:
        """Process a timer that fires; its key may have no rows in the batch, and no state.

        Args:
            key: The key's values, as for rows.
            time_ms: The time of the timer, milliseconds since 1970.
            domain: `event` or `processing`.
        """

    @final
    def register_event_time_timer(self, time_ms: int) -> None:
        """Register a timer of the current key, which fires once the watermark has reached the time.

        Args:
            time_ms: Milliseconds since 1970. A time that has passed is due in this batch.

        Raises:
            InvalidRequestError: `time_mode` is not `event`, or the time is not an integer.
        """
        self._service("event").register(time_ms)

    @final
    def register_processing_time_timer(self, time_ms: int) -> None:
        """Register a timer of the current key, which fires in the first batch of this time or a later one.

        Args:
            time_ms: Milliseconds since 1970. A time that has passed is due in this batch.

        Raises:
            InvalidRequestError: `time_mode` is `none`, or the time is not an integer.
        """
        self._service("processing").register(time_ms)

    @final
    def delete_event_time_timer(self, time_ms: int) -> None:
        """Delete a timer of the current key, if it exists. Raises the same as its registration."""
        self._service("event").delete(time_ms)

    @final
    def delete_processing_time_timer(self, time_ms: int) -> None:
        """Delete a timer of the current key, if it exists. Raises the same as its registration."""
        self._service("processing").delete(time_ms)

    @final
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        states = context.keyed_state_store
        timers: dict[TimeDomain, TimerService] = {}
        if self.time_mode == "event":
            timers["event"] = states.event_time_timers()
        if self.time_mode != "none":
            timers["processing"] = states.processing_time_timers()
        self._context = context
        self._timers = timers
        self._loop = KeyLoop(states, timers, pa.Array.to_pylist, named_key(states.key.names))
        self.open(context)

    @final
    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = self._context
        output = OutputRows(context.output_schema or context.input_schema)
        for returned in self._results(list(gather(batches))):
            if returned is not None:
                output.add(returned)
                if output.is_full:
                    yield from output.take()
        self._loop.end()
        yield from output.take()

    @abstractmethod
    def _key_results(
        self, keys: Keys, parts: Sequence[pa.RecordBatch]
    ) -> Iterator[Iterable[Row] | None]:
        """Yield the results of the calls for the keys that have rows in the batch."""

    def _results(self, parts: Sequence[pa.RecordBatch]) -> Iterator[Iterable[Row] | None]:
        """Yield the results of all calls: for each key with rows, then for each timer that fires."""
        context, self._is_processing = self._context, True
        if parts:
            keys = context.keyed_state_store.keys(pa.Table.from_batches(parts))
            yield from self._key_results(keys, parts)
        until_ms: dict[TimeDomain, int] = {
            "event": context.watermark,
            "processing": context.batch_time,
        }
        for key, time_ms, domain in self._loop.timers(until_ms):
            yield self.on_timer(key, time_ms, domain)

    def _service(self, domain: TimeDomain) -> TimerService:
        service = self._timers.get(domain)
        if service is None:
            raise InvalidRequestError(
                f"timers of {domain} time need time_mode {domain!r} in the function's class, so that "
                "batches run when they are due"
            )
        return service


class KeyedProcessFunction(KeyedFunction):
    """An operator that is called once for each key of a micro-batch, and for each timer that is due.

    Source:
        Flink, KeyedProcessFunction. Timers fire as those of Spark's StatefulProcessor do.
    """

    @abstractmethod
    def process_key(self, key: Any, rows: pa.RecordBatch) -> Iterable[Row] | None:
        """Process the rows of a key; called once for each key of the batch.

        Args:
            key: The key's values as a named tuple, even if it has one column. The order of keys is arbitrary,
                but the same for the same rows.
            rows: All rows of the key in this batch, in the order of arrival, with all columns of the input.
        """

    def _key_results(
        self, keys: Keys, parts: Sequence[pa.RecordBatch]
    ) -> Iterator[Iterable[Row] | None]:
        bounds = np.append(keys.rows.starts, len(keys.rows.order))
        rows_by_key = _rows_by_key(parts, keys.rows.order, bounds)
        for key, rows in zip(self._loop.keys(keys), rows_by_key, strict=True):
            yield self.process_key(key, rows)


class KeyedBroadcastProcessFunction(KeyedProcessFunction, BroadcastProcessFunction):
    """A `KeyedProcessFunction` with a second, small stream, whose rows all go to every subtask.

    `process_broadcast` is called before the calls for keys. There it can use broadcast state, and keyed state by `keys_of`.

    Source:
        Flink, KeyedBroadcastProcessFunction.
    """

    @final
    def keys_of(self, state: ValueState | KeyedListState | MapState) -> Iterator[Any]:
        """Iterate over all keys that have a state, in `process_broadcast`: for repairs, and for rules about all keys.

        States have the values of a key until the next one is requested. All keys of the subtask are in memory, their values are
        not.

        Args:
            state: A state without namespaces.

        Raises:
            InvalidRequestError: This is not called in `process_broadcast`.

        Source:
            Flink, KeyedBroadcastProcessFunction.Context.applyToKeyedState.
        """
        if self._is_processing:
            message = "keys_of can only be used in process_broadcast: later, a key of the batch or of a timer is current"
            raise InvalidRequestError(message)
        store = self._context.keyed_state_store
        store.end_batch()
        width = len(store.key)
        scanned = [rows.identities.columns[:width] for rows in state.columns.rows.table.scan()]
        if scanned:
            columns = map(pa.concat_arrays, zip(*scanned, strict=True))
            yield from self._loop.keys(store.keys(list(columns)))
        store.end_batch()


class KeyedCoProcessFunction(KeyedFunction):
    """An operator on two streams: called for each key of a micro-batch with the rows of each stream.

    Of a key that has rows of both streams in a batch, those of the first are processed before those of the second.

    Source:
        Flink, KeyedCoProcessFunction.
    """

    @abstractmethod
    def process_first(self, key: Any, rows: pa.RecordBatch) -> Iterable[Row] | None:
        """Process the rows of a key in the first stream; called once for each key that has some in the batch.

        Args:
            key: The key's values as a named tuple, with the names that they have in the first stream. The order of keys
                is arbitrary, but the same for the same rows.
            rows: The rows of the key in this batch, in the order of arrival, with all columns of the stream.
        """

    @abstractmethod
    def process_second(self, key: Any, rows: pa.RecordBatch) -> Iterable[Row] | None:
        """Process the rows of a key in the second stream. Arguments are those of `process_first`."""

    def _key_results(
        self, keys: Keys, parts: Sequence[pa.RecordBatch]
    ) -> Iterator[Iterable[Row] | None]:
        first, second = (_InputRows.of(keys, parts, name) for name in (FIRST, SECOND))
        for index, key in enumerate(self._loop.keys(keys)):
            if first.counts[index]:
                yield self.process_first(key, next(first.rows))
            if second.counts[index]:
                yield self.process_second(key, next(second.rows))


@dataclasses.dataclass(frozen=True, slots=True)
class _InputRows:
    """The rows of one of two streams: their number for each key, and the rows of each key that has some."""

    counts: npt.NDArray[np.int64]
    rows: Iterator[pa.RecordBatch]

    @classmethod
    def of(cls, keys: Keys, parts: Sequence[pa.RecordBatch], name: str) -> Self:
        own = rows_of_input(parts, name)
        codes = keys.codes[own.positions]
        counts = np.bincount(codes, minlength=len(keys))
        bounds = np.append(0, np.cumsum(counts[counts > 0]))
        order = np.argsort(codes, kind="stable")
        return cls(counts, _rows_by_key(own.parts, order, bounds) if len(order) else iter(()))


def _rows_by_key(
    parts: Sequence[pa.RecordBatch], order: npt.NDArray[np.int64], bounds: npt.NDArray[np.int64]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of each key.

    `order` has the positions of rows by key, `bounds` the start of each key's rows there, and the end of the last one's.
    """
    start, end = int(bounds[0]), int(bounds[-1])
    batches = list(take_rows(parts, order[start:end]))
    if len(batches) == 1:
        for first, last in pairwise((bounds - start).tolist()):
            yield batches[0].slice(first, last - first)
    elif len(bounds) == 2:
        raise InvalidRequestError(
            f"a key has {end - start} rows in a micro-batch with more text, bytes or lists than the 2 GiB that a "
            "record batch holds; let sources give less at once, such as by maxFilesPerTrigger or maxOffsetsPerTrigger"
        )
    else:
        middle = len(bounds) // 2
        yield from _rows_by_key(parts, order, bounds[: middle + 1])
        yield from _rows_by_key(parts, order, bounds[middle:])
