"""Rows of a stream by key and window, and the operators on them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Literal

from pyspark.sql.types import StructField, StructType

from holdfast.errors import InvalidRequestError
from holdfast.spark.aggregates import (
    Aggregate,
    Panes,
    aggregate_rows,
    need_combining,
    preparation_of,
)
from holdfast.spark.keyed_input import KeyedInput, check_named, output_of
from holdfast.spark.keyed_output import KeyedOutput
from holdfast.spark.windows import (
    END,
    START,
    WindowAssigner,
    WindowedAggregation,
    WindowedFunction,
    WindowFunction,
)

Emit = Literal["append", "update"]


@dataclass(frozen=True, slots=True)
class WindowedRows:
    """Rows of a stream by key and window, made by `KeyedRows.window`."""

    keyed: KeyedInput
    windows: WindowAssigner
    time: str
    allowed_lateness: timedelta
    emit: Emit

    def agg(
        self,
        *unnamed: object,
        renamed: Mapping[str, str] | None = None,
        added: Collection[str] = (),
        dropped: Collection[str] = (),
        **aggregates: Aggregate,
    ) -> KeyedOutput:
        """Keep aggregates of each key and window; columns are the key, window_start, window_end, and the aggregates.

        `renamed`, `added` and `dropped` are those of `KeyedRows.agg`. The windows themselves can't be changed.

        Raises:
            InvalidRequestError: An aggregate has no name, or names collide, or a column doesn't exist.
        """
        check_named(unnamed)
        keyed_rows = self.keyed
        function = WindowedAggregation(
            aggregates,
            self.windows,
            renamed=renamed,
            added=added,
            dropped=dropped,
            **self._options(),
        )
        combined = need_combining(aggregates)
        if combined and keyed_rows.late_rows:
            raise InvalidRequestError(
                f"aggregates {combined} count distinct values, which Spark combines before a row is late; remove "
                "late_rows=True, or move them to a separate operator"
            )
        prepare = partial(
            preparation_of,
            key=keyed_rows.key,
            aggregates=aggregates,
            combine=bool(combined),
            panes=Panes(self.time),
        )
        columns = aggregate_rows(keyed_rows.rows, keyed_rows.key, aggregates).schema.fields
        width = len(keyed_rows.key)
        time = keyed_rows.rows.schema[self.time].dataType
        bounds = [StructField(START, time), StructField(END, time)]
        schema = StructType([*columns[:width], *bounds, *columns[width:]])
        # Late rows keep all of their columns.
        return output_of(
            keyed_rows, function, schema, prepare=None if keyed_rows.late_rows else prepare
        )

    def apply(
        self,
        function: WindowFunction,
        schema: StructType | str,
        *,
        renamed: Mapping[str, str] | None = None,
        dropped: Collection[str] = (),
    ) -> KeyedOutput:
        """Call a function for each key and window with all of its rows, which are kept until then.

        Args:
            function: Called with the key, the window and its rows.
            schema: Spark schema of its output rows.
            renamed: The former names of the rows' columns, by their present names. Rows of open windows
                are kept, so declare here how their columns have changed when the query is restarted.
            dropped: Names of stored columns of rows to delete.
        """
        windowed = WindowedFunction(
            function, self.windows, renamed=renamed, dropped=dropped, **self._options()
        )
        return output_of(self.keyed, windowed, schema)

    def _options(self) -> dict[str, Any]:
        return {"time": self.time, "allowed_lateness": self.allowed_lateness, "emit": self.emit}
