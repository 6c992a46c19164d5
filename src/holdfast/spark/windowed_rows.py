"""Rows of a stream by key and window, and the operators on them."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from pyspark.sql.types import DayTimeIntervalType, LongType, StructField, StructType

from holdfast.errors import InvalidRequestError
from holdfast.spark.aggregates import (
    Aggregate,
    Panes,
    aggregate_rows,
    need_combining,
    preparation_of,
)
from holdfast.spark.event_time import LateRows
from holdfast.spark.keyed_input import KeyedInput, check_named, output_of
from holdfast.spark.keyed_output import KeyedOutput
from holdfast.spark.windows import (
    END,
    START,
    CountWindows,
    Early,
    Emit,
    SessionWindows,
    WindowAssigner,
    WindowedAggregation,
    WindowedFunction,
    WindowFunction,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WindowedRows:
    """Rows of a stream by key and window, made by `KeyedRows.window`."""

    keyed: KeyedInput
    windows: WindowAssigner
    time: str
    allowed_lateness: timedelta
    emit: Emit
    early: Early | None

    def check(self) -> None:
        """Refuse columns that aren't those of windows, and warn if no window would be emitted. Raises `InvalidRequestError`."""
        rows, uid = self.keyed.rows, self.keyed.uid
        LateRows.of(rows, self.time, uid=uid)  # for its errors
        gap = self._gap
        if gap is not None and (
            gap not in rows.columns
            or not isinstance(rows.schema[gap].dataType, DayTimeIntervalType)
        ):
            raise InvalidRequestError(
                f"the gap of sessions must be a column of day-time intervals, such as make_dt_interval(0, 0, minutes), got "
                f"{gap!r}; the rows have {rows.schema.simpleString()}"
            )
        waits = self.emit == "append" and not isinstance(self.windows, CountWindows)
        if waits and not self.keyed.has_watermark:
            _log.warning(
                "windows of operator %r are emitted when the watermark has passed them, but no column of its rows has "
                "a watermark: call withWatermark first, or pass emit='update'. If the column %r was computed from the one "
                "with the watermark, ignore this warning",
                uid,
                self.time,
            )

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
            panes=Panes(self.time, gap=self._gap),
        )
        columns = aggregate_rows(keyed_rows.rows, keyed_rows.key, aggregates).schema.fields
        width = len(keyed_rows.key)
        is_count = isinstance(self.windows, CountWindows)
        bound = LongType() if is_count else keyed_rows.rows.schema[self.time].dataType
        bounds = [StructField(START, bound), StructField(END, bound)]
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

    @property
    def _gap(self) -> str | None:
        """The column with the gap of sessions."""
        gap = self.windows.gap if isinstance(self.windows, SessionWindows) else None
        return gap if isinstance(gap, str) else None

    def _options(self) -> dict[str, Any]:
        return {
            "time": self.time,
            "allowed_lateness": self.allowed_lateness,
            "emit": self.emit,
            "early": self.early,
        }
