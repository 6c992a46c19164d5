"""The base of operators on windows: rows are added to windows, and complete or changed windows are emitted."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import ClassVar, Literal, Required, TypedDict, Unpack

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.backends.arrow import gather, take_rows
from holdfast.backends.descriptors import ReducingStateDescriptor
from holdfast.backends.functions import NO_WATERMARK, FunctionInitializationContext
from holdfast.backends.keyed import TableSpec
from holdfast.common import json_decoder
from holdfast.errors import InvalidRequestError, StateMigrationError
from holdfast.spark.aggregates import ANOTHER_UID, check_own_states
from holdfast.spark.event_time import micros_of
from holdfast.spark.operators import LATE, StatefulFunction
from holdfast.spark.windows.assigners import (
    Assigned,
    CountWindows,
    FixedSpans,
    FixedWindows,
    SessionWindows,
    Spans,
    Times,
    WindowAssigner,
)
from holdfast.spark.windows.counts import COUNTS, CountSpans
from holdfast.spark.windows.sessions import SESSIONS, SessionSpans
from holdfast.spark.windows.triggers import NEW_ROWS, Early, Emission, Emit, EventTimeTrigger

START, END = "window_start", "window_end"
"""The columns of results for the bounds of their window."""

STATE = "windows"
"""The name of the state of each window."""

_WINDOWS = b"holdfast.windows"
_read_note = json_decoder(tuple[str, str, str]).decode
_MICROSECONDS = pa.timestamp("us")


class WindowOptions(TypedDict, total=False):
    """Options of all operators with windows; see `WindowedAggregation`."""

    time: Required[str]
    allowed_lateness: timedelta
    emit: Emit
    early: Early | None


class Windowed(StatefulFunction):
    """Keeps a state of each window, and emits results of windows, each at most once in a batch.

    A row is late, and dropped, or put into the side output "late", if all of its windows are expired: a window expires when
    the watermark reaches its last millisecond plus the allowed lateness. Rows without a time, or without a gap, are in no
    window. A batch first adds its rows, at the watermark of the batch before, then completes windows by its own. With
    emit="append", rows that arrive in the allowed lateness emit their windows again at once. Count windows have no
    event time: they expire when they are complete.

    Attributes:
        kept: The content of the state, for messages.
        late_rows: Number of late rows in the batch; a combined row counts as one.

    Source:
        Flink, WindowOperator and EventTimeTrigger.
    """

    time_mode: Literal["none", "event"] = "event"
    kept: ClassVar[str]
    keeps_late_rows = True  # a late row may belong to a window that has not expired

    def __init__(self, windows: WindowAssigner, **options: Unpack[WindowOptions]) -> None:
        self._emit = options.get("emit", "append")
        lateness, early = options.get("allowed_lateness", timedelta(0)), options.get("early")
        if not isinstance(windows, FixedWindows | SessionWindows | CountWindows):
            raise InvalidRequestError(
                "windows must be made by holdfast.spark.windows: tumbling, sliding, session or count; "
                f"got {windows!r}"
            )
        self._emission = Emission.of(self._emit, lateness, early)
        self._assigner = windows
        self._time = options["time"]
        self.late_rows = 0
        if isinstance(windows, CountWindows):
            self.time_mode = "none"
            if lateness or early is not None:
                raise InvalidRequestError(
                    f"{windows} have no event time, so they can't have allowed_lateness or early; leave it out, or use "
                    "emit='update' for results before they end"
                )

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
        self._windows: FixedSpans | SessionSpans | CountSpans
        self._trigger: EventTimeTrigger | CountSpans
        is_session = isinstance(self._assigner, SessionWindows)
        namespace = SessionSpans.namespace if is_session else FixedSpans.namespace
        check_own_states(self._store, [STATE, SESSIONS, COUNTS, NEW_ROWS])
        stored = self._store.specs().get(STATE)
        metadata = self._column_metadata(stored)
        state = self._store.get_reducing_state(
            self._descriptor(context.input_schema, stored, metadata), namespace
        )
        self._state = state.columns
        if isinstance(self._assigner, CountWindows):
            self._windows = self._trigger = CountSpans(
                self._assigner, self._store, self._time, emits_open=self._emission.emits_open
            )
            return
        timers = self._store.event_time_timers(STATE, namespace).columns
        new_rows = self._emission.new_rows_state(self._store, namespace)
        if isinstance(self._assigner, FixedWindows):
            self._windows = FixedSpans(self._assigner)
        else:
            states = [state] if new_rows is None else [state, new_rows]
            self._windows = SessionSpans(
                self._assigner, self._store, states, timers, self._emission.lateness_ms
            )
        self._trigger = EventTimeTrigger(
            self._emission, self._batch, self._windows, self._store, timers, new_rows=new_rows
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
        due = [self._trigger.add(self._add(parts))] if parts else []
        by_time, expired = self._trigger.fire()
        yield from self._emit_windows([spans for spans in (*due, by_time) if spans])
        if expired:
            self._state.clear(expired.keys)
            self._windows.forget(expired)

    def _add(self, parts: Sequence[pa.RecordBatch]) -> Assigned:
        """Add rows to their windows."""
        for name in self._needed:
            parts = [rows.filter(pc.is_valid(rows.column(name))) for rows in parts]
        times_ms = np.concatenate([_milliseconds(rows.column(self._time)) for rows in parts])
        keys = self._store.keys(pa.Table.from_batches(parts))
        expired_ms = max(self._batch.late_watermark - self._emission.lateness_ms + 1, NO_WATERMARK)
        assigned = self._windows.assign(keys, parts, times_ms, expired_ms)
        self._drop_late(parts, times_ms, assigned)
        if len(assigned.spans):
            self._fold(parts, assigned)
        return assigned

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
        if self.time_mode == "none":
            return
        is_left_out = np.ones(len(times_ms), np.bool_)
        is_left_out[assigned.rows] = False
        is_old = times_ms + self._emission.lateness_ms <= self._batch.late_watermark
        late = np.flatnonzero(is_left_out & is_old)
        self.late_rows += len(late)
        if self._late_output is not None and len(late):
            for rows in take_rows(parts, late):
                self._late_output.emit(rows)

    def _emit_windows(self, due: list[Spans]) -> Iterator[pa.RecordBatch]:
        """Yield the results of windows, each once, in order of time."""
        if not due:
            return
        columns = [
            pa.concat_arrays(parts)
            for parts in zip(*(spans.keys.columns for spans in due), strict=True)
        ]
        starts = np.concatenate([spans.starts for spans in due])
        ends = np.concatenate([spans.ends for spans in due])
        width = due[0].keys.width
        keys = self._store.keys(columns[:width])
        windows = keys.with_columns(keys.codes, columns[width:])
        firsts = windows.rows.firsts
        order = np.lexsort((starts[firsts], ends[firsts]))
        bounds = [self._bounds(numbers[firsts][order]) for numbers in (starts, ends)]
        kept = self._state.get(windows).take(pa.array(order))
        key_columns = [column.take(pa.array(order)) for column in windows.columns[:width]]
        names = [*self._store.key.names, START, END]
        yield from self._results(
            pa.RecordBatch.from_arrays([*key_columns, *bounds], names=names), kept
        )

    def _bounds(self, numbers: Times) -> pa.Array:
        """Return starts or ends of windows as a column."""
        if isinstance(self._assigner, CountWindows):
            # The first windows may have fewer rows than their size.
            return pa.array(numbers.clip(0))
        return _timestamps(numbers).cast(self._time_type)

    def _check(self, schema: pa.Schema) -> None:
        needed = {self._time: ("event time", "a timestamp", pa.types.is_timestamp)}
        if isinstance(self._assigner, SessionWindows) and isinstance(self._assigner.gap, str):
            needed[self._assigner.gap] = ("gaps", "a day-time interval", pa.types.is_duration)
        for name, (content, wanted, is_suitable) in needed.items():
            if name not in schema.names:
                message = f"rows have no column {name!r} of {content}; they have {schema.names}"
                raise InvalidRequestError(message)
            kind = schema.field(name).type
            if not is_suitable(kind):
                message = f"column {name!r} of {content} must be {wanted}, got {kind}"
                raise InvalidRequestError(message)
        self._needed = [*needed]
        self._time_type = pa.timestamp("us", schema.field(self._time).type.tz)


def _timestamps(times_ms: Times) -> pa.Array:
    """Convert times to a column, limited to the first and last time of its type."""
    max_ms = np.iinfo(np.int64).max // 1000
    return pa.array(1000 * times_ms.clip(-max_ms, max_ms), _MICROSECONDS)


def _milliseconds(column: pa.Array) -> Times:
    """Convert times to milliseconds since 1970, rounded down."""
    times_ms: Times = np.floor_divide(micros_of(column).to_numpy(), 1000)
    return times_ms
