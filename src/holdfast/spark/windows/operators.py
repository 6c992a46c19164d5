"""The operators: aggregates of each window, or a function of its rows."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, TypeAlias, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.backends.arrow import named_conversion
from holdfast.backends.descriptors import ReducingStateDescriptor
from holdfast.backends.keyed import TableSpec
from holdfast.errors import InvalidRequestError, StateMigrationError
from holdfast.spark.aggregates import (
    Accumulators,
    Aggregate,
    AggregateChanges,
    check_aggregates,
    need_combining,
)
from holdfast.spark.operators import OutputRows, Row
from holdfast.spark.windows.assigners import CountWindow, CountWindows, Window, WindowAssigner
from holdfast.spark.windows.windowed import END, START, STATE, Windowed, WindowOptions

_FIRST_MICROS, _LAST_MICROS = (
    pa.scalar(moment, pa.timestamp("us")).value
    for moment in (datetime.min, datetime.max)  # noqa: DTZ901
)

_Returned: TypeAlias = Iterable[Row] | None
WindowFunction: TypeAlias = (
    Callable[[tuple[Any, ...], Window, pa.Table], _Returned]
    | Callable[[tuple[Any, ...], CountWindow, pa.Table], _Returned]
)
"""Called with a key, a window and its rows in order of time; returns rows of the output.

The rows are tuples in the order of the output's columns, mappings by name, or rows of Arrow; None means no rows.
"""


class WindowedAggregation(Windowed):
    """Aggregates of each window, over the rows of `operands_of`; results have no column of time but the window's.

    Args:
        aggregates: The aggregates by name.
        windows: The windows of each row.
        renamed: The former names of aggregates, as for `KeyedRows.agg`; so are added and dropped ones.
        options: `time`, the column of event time; `allowed_lateness`, how long complete windows are kept, by default
            not at all; `emit`: "append" emits complete windows, "update" windows in each batch that has rows of
            them; `early`: "append" also emits windows before they are complete, after a number of rows or an
            interval.
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
        combined = need_combining(aggregates)
        early_rows = self._emission.early_rows
        if combined and (early_rows is not None or isinstance(windows, CountWindows)):
            raise InvalidRequestError(
                f"aggregates {combined} count distinct values, which Spark combines before rows are counted; remove them, "
                "or use windows of time, and early= an interval"
            )
        self._aggregates = dict(aggregates)
        self._changes = AggregateChanges.of(aggregates, renamed, added, dropped)

    def _descriptor(
        self, schema: pa.Schema, stored: TableSpec | None, metadata: Mapping[bytes, bytes]
    ) -> ReducingStateDescriptor:
        check_aggregates(self._aggregates, [*self._store.key.names, START, END])
        self._accumulators = Accumulators(self._aggregates, schema)
        return self._accumulators.descriptor(STATE, stored, self._changes, metadata=metadata)

    def _operands(self, rows: pa.RecordBatch) -> pa.Array:
        return self._accumulators.operands(rows)

    def _results(self, windows: pa.RecordBatch, kept: pa.StructArray) -> Iterator[pa.RecordBatch]:
        results = self._accumulators.results(kept)
        yield pa.RecordBatch.from_arrays(
            [*windows.columns, *results.values()], names=[*windows.schema.names, *results]
        )


class WindowedFunction(Windowed):
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
            STATE,
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
        function: Any = self._function
        window_of: Any = CountWindow if isinstance(self._assigner, CountWindows) else Window
        for index, (first, count) in enumerate(zip(ends - lengths, lengths, strict=True)):
            returned = function(
                tuple(column[index] for column in key),
                window_of(starts_at[index], ends_at[index]),
                rows.slice(first, count),
            )
            if returned is not None:
                output.add(returned)
                if output.is_full:
                    yield from output.take()
        yield from output.take()


def _python_values(name: str, column: pa.Array) -> list[Any]:
    """Convert a column of windows to Python; bounds beyond Python's calendar become its first or last instant."""
    with named_conversion(f"key column {name!r}", column.type):
        if name in (START, END) and pa.types.is_timestamp(column.type):
            micros = column.cast(pa.int64()).to_numpy().clip(_FIRST_MICROS, _LAST_MICROS)
            column = pa.array(micros, column.type)
        values: list[Any] = column.to_pylist()
        return values
