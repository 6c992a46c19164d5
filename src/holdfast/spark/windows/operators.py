"""The operators: rows are added to windows, and complete or changed windows are emitted."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, Literal, Required, TypedDict, Unpack

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.backends.arrow import gather, named_conversion, take_rows
from holdfast.backends.descriptors import ReducingStateDescriptor
from holdfast.backends.functions import NO_WATERMARK, FunctionInitializationContext
from holdfast.backends.keyed import TableSpec
from holdfast.common import json_decoder
from holdfast.errors import InvalidRequestError, StateMigrationError
from holdfast.spark.aggregates import (
    ANOTHER_UID,
    Accumulators,
    Aggregate,
    AggregateChanges,
    check_aggregates,
    check_own_states,
)
from holdfast.spark.event_time import micros_of
from holdfast.spark.operators import LATE, OutputRows, Row, StatefulFunction
from holdfast.spark.windows.assigners import (
    Assigned,
    FixedSpans,
    FixedWindows,
    SessionWindows,
    Spans,
    Times,
    Window,
    WindowAssigner,
    positive_ms,
)
from holdfast.spark.windows.sessions import SESSIONS, SessionSpans

START, END = "window_start", "window_end"
"""The columns of results for the bounds of their window."""

_STATE = "windows"
_WINDOWS = b"holdfast.windows"
_read_note = json_decoder(tuple[str, str, str]).decode
_MICROSECONDS = pa.timestamp("us")
_FIRST_MICROS, _LAST_MICROS = (
    pa.scalar(moment, _MICROSECONDS).value
    for moment in (datetime.min, datetime.max)  # noqa: DTZ901
)

Emit = Literal["append", "update"]
WindowFunction = Callable[[tuple[Any, ...], Window, pa.Table], Iterable[Row] | None]
"""Called with a key, a window and its rows in order of time; returns rows of the output.

The rows are tuples in the order of the output's columns, mappings by name, or rows of Arrow; None means no rows.
"""


class WindowOptions(TypedDict, total=False):
    """Options of all operators with windows; see `WindowedAggregation`."""

    time: Required[str]
    allowed_lateness: timedelta
    emit: Emit


class _Windowed(StatefulFunction):
    """Keeps a state of each window, and emits results of windows.

    A row is late, and dropped, or put into the side output "late", if all of its windows are expired: a window expires when the watermark reaches its last
    millisecond plus the allowed lateness. Rows without a time are in no window. A batch first adds its rows, at the
    watermark of the batch before, then completes windows by its own. With emit="append", rows that arrive in the allowed
    lateness emit their windows again at once.

    Attributes:
        kept: The content of the state, for messages.
        late_rows: Number of late rows in the batch; a combined row counts as one.

    Source:
        Flink, WindowOperator and EventTimeTrigger.
    """

    time_mode = "event"
    kept: ClassVar[str]
    keeps_late_rows = True  # a late row may belong to a window that has not expired

    def __init__(self, windows: WindowAssigner, **options: Unpack[WindowOptions]) -> None:
        emit = options.get("emit", "append")
        allowed_lateness = options.get("allowed_lateness", timedelta(0))
        if not isinstance(windows, FixedWindows | SessionWindows):
            raise InvalidRequestError(
                "windows must be made by holdfast.spark.windows: tumbling, sliding or session; "
                f"got {windows!r}"
            )
        if emit not in ("append", "update"):
            raise InvalidRequestError(f"emit must be 'append' or 'update', got {emit!r}")
        self._assigner = windows
        self._time = options["time"]
        self._lateness_ms = (
            positive_ms("allowed lateness", allowed_lateness) if allowed_lateness else 0
        )
        self._emit = emit
        self.late_rows = 0

    @abstractmethod
    def _descriptor(
        self, schema: pa.Schema, stored: TableSpec | None, metadata: Mapping[bytes, bytes]
    ) -> ReducingStateDescriptor:
        """Return the descriptor of the windows' state, given the stored state and metadata to store with each column."""

    @abstractmethod
    def _operands(self, rows: pa.RecordBatch) -> pa.Array:
        """Return the operand that each row adds to the state of its window."""

    @abstractmethod
    def _results(self, windows: pa.RecordBatch, kept: pa.StructArray) -> Iterator[pa.RecordBatch]:
        """Return the output rows of windows: keys with start and end, in order of time, and the state of each."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self._check(context.input_schema)
        self._store = context.keyed_state_store
        self._batch = context.times
        self._output = context.output_schema or context.input_schema
        self._late_output = context.side_outputs.get(LATE)
        is_fixed = isinstance(self._assigner, FixedWindows)
        namespace = FixedSpans.namespace if is_fixed else SessionSpans.namespace
        check_own_states(self._store, [_STATE, SESSIONS])
        stored = self._store.specs().get(_STATE)
        metadata = self._column_metadata(stored)
        state = self._store.get_reducing_state(
            self._descriptor(context.input_schema, stored, metadata), namespace
        )
        self._state = state.columns
        self._timers = self._store.event_time_timers(_STATE, namespace).columns
        self._windows: FixedSpans | SessionSpans
        if isinstance(self._assigner, FixedWindows):
            self._windows = FixedSpans(self._assigner)
        else:
            self._windows = SessionSpans(
                self._assigner, self._store, state, self._timers, self._lateness_ms
            )

    def _column_metadata(self, stored: TableSpec | None) -> dict[bytes, bytes]:
        """Return the description of the windows. Raises `StateMigrationError` if the stored ones differ."""
        now = (str(self._assigner), self._emit, self.kept)
        for field in [] if stored is None else stored.values:
            note = (field.metadata or {}).get(_WINDOWS)
            if note is None:
                continue
            windows, emit, kept = _read_note(note)
            if (windows, kept) != (now[0], self.kept):
                raise StateMigrationError(
                    f"the stored state has {kept} of {windows}, and the operator now has {self.kept} of {now[0]}; state "
                    f"can't move to other windows. Use the stored windows, or {ANOTHER_UID}"
                )
            if (emit, self._emit) == ("append", "update"):
                raise StateMigrationError(
                    "the stored windows have emit='append': they were not emitted yet, and never would be with "
                    f"emit='update'; keep emit='append', or {ANOTHER_UID}"
                )
        return {_WINDOWS: msgspec.json.encode(now)}

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts = list(gather(batches))
        due = [self._add(parts)] if parts else []
        complete, expired = self._fire()
        if self._emit == "append":
            due.append(complete)
        yield from self._emit_windows([spans for spans in due if len(spans)])
        if len(expired):
            self._state.clear(expired.keys)
            self._windows.forget(expired)

    def _add(self, parts: Sequence[pa.RecordBatch]) -> Spans:
        """Add rows to their windows, and return the windows to emit because of them."""
        parts = [rows.filter(pc.is_valid(rows.column(self._time))) for rows in parts]
        times_ms = np.concatenate([_milliseconds(rows.column(self._time)) for rows in parts])
        keys = self._store.keys(pa.Table.from_batches(parts))
        late_ms = self._batch.late_watermark
        expired_ms = max(late_ms - self._lateness_ms + 1, NO_WATERMARK)
        assigned = self._windows.assign(keys, times_ms, expired_ms)
        self._drop_late(parts, times_ms, assigned)
        spans = assigned.spans
        if len(spans):
            self._fold(parts, assigned)
        every = np.arange(len(spans))
        last_ms = spans.ends_ms - 1
        if self._emit == "update":
            self._timers.register(spans.keys, last_ms + self._lateness_ms, every)
            return spans
        is_complete = last_ms <= late_ms
        self._timers.register(spans.keys, last_ms[~is_complete], every[~is_complete])
        if self._lateness_ms:
            self._timers.register(spans.keys, last_ms + self._lateness_ms, every)
        return spans.take(is_complete)

    def _fold(self, parts: Sequence[pa.RecordBatch], assigned: Assigned) -> None:
        """Add the operands of rows to the state of their windows."""
        keys = assigned.spans.keys
        operands = [pa.RecordBatch.from_struct_array(self._operands(rows)) for rows in parts]
        first = 0
        for part in take_rows(operands, assigned.rows):
            end = first + part.num_rows
            is_all = part.num_rows == len(assigned.rows)
            self._state.add(keys if is_all else keys.of_rows(first, end), part.to_struct_array())
            first = end

    def _drop_late(
        self, parts: Sequence[pa.RecordBatch], times_ms: Times, assigned: Assigned
    ) -> None:
        """Count late rows, and emit them if the operator has an output for them."""
        is_left_out = np.ones(len(times_ms), np.bool_)
        is_left_out[assigned.rows] = False
        is_old = times_ms + self._lateness_ms <= self._batch.late_watermark
        late = np.flatnonzero(is_left_out & is_old)
        self.late_rows += len(late)
        if self._late_output is not None and len(late):
            for rows in take_rows(parts, late):
                self._late_output.emit(rows)

    def _fire(self) -> tuple[Spans, Spans]:
        """Return the windows that the batch's watermark completes, and the expired ones."""
        fired = self._timers.fire(self._batch.watermark)
        windows = self._windows.look_up(self._store.keys(list(fired.key)), list(fired.namespace))
        spans = windows.spans
        last_ms = spans.ends_ms - 1
        at = spans.keys.codes
        delays_ms = fired.times_ms[windows.rows] - last_ms[at]
        is_complete, is_expired = (np.zeros(len(spans), np.bool_) for _ in range(2))
        is_complete[at[delays_ms == 0]] = True
        is_expired[at[delays_ms >= self._lateness_ms]] = True
        kept = is_complete & ~is_expired
        if kept.any():  # the lateness may be new to windows of an earlier run
            expiry_ms = last_ms[kept] + self._lateness_ms
            self._timers.register(spans.keys, expiry_ms, np.flatnonzero(kept))
        return spans.take(is_complete), spans.take(is_expired)

    def _emit_windows(self, due: list[Spans]) -> Iterator[pa.RecordBatch]:
        """Yield the results of windows, each once, in order of time."""
        if not due:
            return
        columns = [
            pa.concat_arrays(parts)
            for parts in zip(*(spans.keys.columns for spans in due), strict=True)
        ]
        starts = np.concatenate([spans.starts_ms for spans in due])
        ends = np.concatenate([spans.ends_ms for spans in due])
        width = due[0].keys.width
        keys = self._store.keys(columns[:width])
        windows = keys.with_columns(keys.codes, columns[width:])
        firsts = windows.rows.firsts
        order = np.lexsort((starts[firsts], ends[firsts]))
        kept = self._state.get(windows).take(pa.array(order))
        bounds = [
            _timestamps(times_ms[firsts][order]).cast(self._time_type)
            for times_ms in (starts, ends)
        ]
        key_columns = [column.take(pa.array(order)) for column in windows.columns[:width]]
        names = [*self._store.key.names, START, END]
        yield from self._results(
            pa.RecordBatch.from_arrays([*key_columns, *bounds], names=names), kept
        )

    def _check(self, schema: pa.Schema) -> None:
        if self._time not in schema.names:
            message = f"rows have no column {self._time!r} of event time; they have {schema.names}"
            raise InvalidRequestError(message)
        kind = schema.field(self._time).type
        if not pa.types.is_timestamp(kind):
            message = f"column {self._time!r} of event time must be a timestamp, got {kind}"
            raise InvalidRequestError(message)
        self._time_type = pa.timestamp("us", kind.tz)


class WindowedAggregation(_Windowed):
    """Aggregates of each window, over the rows of `operands_of`; results have no column of time but the window's.

    Args:
        aggregates: The aggregates by name.
        windows: The windows of each row.
        renamed: The former names of aggregates, as for `KeyedRows.agg`; so are added and dropped ones.
        options: `time`, the column of event time; `allowed_lateness`, how long complete windows are kept, by default
            not at all; `emit`: "append" emits complete windows, "update" windows in each batch that has rows of
            them.
    """

    kept = "aggregates"

    def __init__(
        self,
        aggregates: Mapping[str, Aggregate],
        windows: WindowAssigner,
        *,
        renamed: Mapping[str, str] | None = None,
        added: Collection[str] = (),
        dropped: Collection[str] = (),
        **options: Unpack[WindowOptions],
    ) -> None:
        super().__init__(windows, **options)
        check_aggregates(aggregates, [START, END])
        self._aggregates = dict(aggregates)
        self._changes = AggregateChanges.of(aggregates, renamed, added, dropped)

    def _descriptor(
        self, schema: pa.Schema, stored: TableSpec | None, metadata: Mapping[bytes, bytes]
    ) -> ReducingStateDescriptor:
        check_aggregates(self._aggregates, [*self._store.key.names, START, END])
        self._accumulators = Accumulators(self._aggregates, schema)
        return self._accumulators.descriptor(_STATE, stored, self._changes, metadata=metadata)

    def _operands(self, rows: pa.RecordBatch) -> pa.Array:
        return self._accumulators.operands(rows)

    def _results(self, windows: pa.RecordBatch, kept: pa.StructArray) -> Iterator[pa.RecordBatch]:
        results = self._accumulators.results(kept)
        yield pa.RecordBatch.from_arrays(
            [*windows.columns, *results.values()], names=[*windows.schema.names, *results]
        )


class WindowedFunction(_Windowed):
    """Calls a function for each window with all of its rows, which are kept until the window expires.

    Arguments are those of `WindowedRows.apply`, and options as for `WindowedAggregation`.
    """

    kept = "rows"

    def __init__(
        self,
        function: WindowFunction,
        windows: WindowAssigner,
        *,
        renamed: Mapping[str, str] | None = None,
        dropped: Collection[str] = (),
        **options: Unpack[WindowOptions],
    ) -> None:
        super().__init__(windows, **options)
        self._function = function
        self._renamed = renamed or {}
        self._dropped = dropped

    def _descriptor(
        self, schema: pa.Schema, stored: TableSpec | None, metadata: Mapping[bytes, bytes]
    ) -> ReducingStateDescriptor:
        self._rows_type = pa.list_(pa.struct(list(schema)))
        before = [] if stored is None else stored.values.field("rows").type.value_type
        gone = {field.name for field in before} - {
            *schema.names,
            *self._renamed.values(),
            *self._dropped,
        }
        if gone:
            new = sorted({*schema.names} - {field.name for field in before})
            raise StateMigrationError(
                f"stored rows of open windows have columns {sorted(gone)}, but input rows don't; they have new columns "
                f"{new}. Pass apply renamed={{new name: old name}}, or dropped={sorted(gone)} to delete their values"
            )
        return ReducingStateDescriptor(
            _STATE,
            {"rows": "concatenate"},
            pa.struct([pa.field("rows", self._rows_type, metadata=metadata)]),
            renamed={f"rows[].{name}": before for name, before in self._renamed.items()},
            dropped=[f"rows[].{name}" for name in self._dropped],
        )

    def _operands(self, rows: pa.RecordBatch) -> pa.Array:
        offsets = pa.array(np.arange(rows.num_rows + 1, dtype=np.int32))
        lists = pa.ListArray.from_arrays(offsets, rows.to_struct_array(), type=self._rows_type)
        return pa.StructArray.from_arrays([lists], names=["rows"])

    def _results(self, windows: pa.RecordBatch, kept: pa.StructArray) -> Iterator[pa.RecordBatch]:
        (lists,) = kept.flatten()
        lengths = pc.list_value_length(lists).to_numpy()
        rows = pa.Table.from_struct_array(lists.flatten())
        owners = np.repeat(np.arange(len(lengths)), lengths)
        by = pa.table({"window": owners, "time": rows.column(self._time)})
        rows = rows.take(pc.sort_indices(by, [("window", "ascending"), ("time", "ascending")]))
        ends = np.cumsum(lengths)
        *key, starts_at, ends_at = (
            _python_values(name, column)
            for name, column in zip(windows.schema.names, windows.columns, strict=True)
        )
        output = OutputRows(self._output)
        for index, (first, count) in enumerate(zip(ends - lengths, lengths, strict=True)):
            returned = self._function(
                tuple(column[index] for column in key),
                Window(starts_at[index], ends_at[index]),
                rows.slice(first, count),
            )
            if returned is not None:
                output.add(returned)
                if output.is_full:
                    yield from output.take()
        yield from output.take()


def _timestamps(times_ms: Times) -> pa.Array:
    """Convert times to a column, limited to the first and last time of its type."""
    max_ms = np.iinfo(np.int64).max // 1000
    return pa.array(1000 * times_ms.clip(-max_ms, max_ms), _MICROSECONDS)


def _python_values(name: str, column: pa.Array) -> list[Any]:
    """Convert a column of windows to Python; bounds beyond Python's calendar become its first or last instant."""
    with named_conversion(f"key column {name!r}", column.type):
        if name in (START, END):
            micros = column.cast(pa.int64()).to_numpy().clip(_FIRST_MICROS, _LAST_MICROS)
            column = pa.array(micros, column.type)
        values: list[Any] = column.to_pylist()
        return values


def _milliseconds(column: pa.Array) -> Times:
    """Convert times to milliseconds since 1970, rounded down."""
    times_ms: Times = np.floor_divide(micros_of(column).to_numpy(), 1000)
    return times_ms
