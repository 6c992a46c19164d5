"""Rows of two streams by key, and the operators on them."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from holdfast.errors import InvalidRequestError
from holdfast.spark import event_time
from holdfast.spark.event_time import LateRows
from holdfast.spark.joins import AsofJoin, IntervalJoin, JoinKind, joined_schema
from holdfast.spark.keyed_input import KeyedInput, output_of
from holdfast.spark.keyed_output import KeyedOutput
from holdfast.spark.operators import (
    FIRST,
    SECOND,
    TIME,
    KeyedCoProcessFunction,
    StreamInput,
    union_inputs,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectedRows:
    """Rows of two streams by key, made by `KeyedRows.connect`."""

    first: KeyedInput
    rows: DataFrame
    key: tuple[str, ...]
    event_time: str | None

    def __post_init__(self) -> None:
        missing = [name for name in self.key if name not in self.rows.columns]
        if missing or len(self.key) != len(self.first.key):
            raise InvalidRequestError(
                f"the key of the second stream must be {len(self.first.key)} of its columns {self.rows.columns}, as many as "
                f"{self.first.key} of the first one; got {self.key}"
            )
        for name, other in zip(self.first.key, self.key, strict=True):
            kinds = [
                rows.schema[column].dataType.simpleString()
                for rows, column in ((self.first.rows, name), (self.rows, other))
            ]
            if kinds[0] != kinds[1]:
                raise InvalidRequestError(
                    f"key column {other!r} of the second stream has type {kinds[1]}, and {name!r} of the first one "
                    f"{kinds[0]}; cast one of them"
                )
        used = {FIRST, SECOND, TIME} & {name.lower() for name in self.first.key}
        if used:
            raise InvalidRequestError(
                f"key columns of connected streams can't be named {sorted(used)}; rename them with withColumnRenamed"
            )

    def process(
        self,
        function: KeyedCoProcessFunction,
        schema: StructType | str,
        *,
        side_outputs: Mapping[str, StructType | str] | None = None,
    ) -> KeyedOutput:
        """Run a function on both streams.

        Args:
            function: The function.
            schema: Spark schema of its output rows.
            side_outputs: Spark schemas of further outputs by name, as for `stateful`.

        Raises:
            InvalidRequestError: An argument can't be used.
        """
        if not isinstance(function, KeyedCoProcessFunction):
            raise InvalidRequestError(
                f"connected streams need a KeyedCoProcessFunction, got {type(function).__name__}"
            )
        times: tuple[str | None, str | None] = (None, None)
        is_event = function.time_mode == "event"
        if is_event:
            has_times = self.first.has_watermark, self._second_has_watermark
            times = self.first.event_time, self.event_time
            if not any(has_times):
                LateRows.of(self.first.rows, None, uid=self.first.uid)  # for its error
        else:
            has_times = False, False
        rows = self._union(
            _time_of(self.first.rows, times[0], self.first.uid) if has_times[0] else None,
            _time_of(self.rows, times[1], self.first.uid) if has_times[1] else None,
        )
        return output_of(
            replace(self.first, rows=rows, event_time=None),
            function,
            schema,
            event_time=TIME if is_event else None,
            side_outputs=side_outputs,
        )

    def interval_join(
        self,
        *,
        time: str,
        other_time: str,
        lower: timedelta,
        upper: timedelta,
        how: JoinKind = "inner",
    ) -> KeyedOutput:
        """Join rows of equal keys whose times differ by at least `lower` and at most `upper`.

        The output has the columns of both streams; key columns of one name are one column. Pairs are emitted at once, rows
        without a match when the watermark shows that none can follow. As in SQL, null equals no key.

        Args:
            time: The column of event time of the first stream.
            other_time: The column of event time of the second stream.
            lower: The least difference, `other_time` minus `time`; may be negative.
            upper: The greatest difference.
            how: "inner" emits pairs only; "left", "right" and "full" also the rows of the first stream, the second, or both
                that have no match.

        Raises:
            InvalidRequestError: An argument can't be used, or the streams have other columns of one name.
        """
        function = IntervalJoin(time, other_time, lower, upper, kind=how, second_key=self.key)
        return self._join(function, time, other_time)

    def asof_join(
        self,
        *,
        time: str,
        other_time: str,
        tolerance: timedelta | None = None,
        how: Literal["inner", "left"] = "inner",
    ) -> KeyedOutput:
        """Join each row of the first stream with the latest row of its key in the second that is not later.

        If the second stream has versions of rows of a table, this is a temporal join. A row is emitted when the watermark
        has reached its time. Columns are those of `interval_join`.

        Args:
            time: The column of event time of the first stream.
            other_time: The column of event time of the second stream. Of several rows of that time the last to arrive counts.
            tolerance: The greatest difference of the times. None has no limit, and keeps the latest row of each key.
            how: "left" also emits the rows of the first stream without a match.

        Raises:
            InvalidRequestError: An argument can't be used, or the streams have other columns of one name.
        """
        function = AsofJoin(time, other_time, tolerance, kind=how, second_key=self.key)
        return self._join(function, time, other_time)

    def _join(self, function: IntervalJoin | AsofJoin, time: str, other_time: str) -> KeyedOutput:
        first, uid = self.first, self.first.uid
        schema = joined_schema(first.rows.schema, self.rows.schema, first.key, self.key)
        rows = self._union(_time_of(first.rows, time, uid), _time_of(self.rows, other_time, uid))
        if not (first.has_watermark and self._second_has_watermark):
            _log.warning(
                "the join %r keeps rows until the watermark has passed them, but one of its streams has none: call "
                "withWatermark on both first. If their times were computed from columns with a watermark, ignore this warning",
                uid,
            )
        return output_of(
            replace(first, rows=rows, event_time=None), function, schema, event_time=TIME
        )

    @property
    def _second_has_watermark(self) -> bool:
        return self.event_time is not None or event_time.has_watermark(self.rows.schema)

    def _union(self, time: Column | None, other_time: Column | None) -> DataFrame:
        return union_inputs(
            StreamInput(self.first.rows, self.first.key, time),
            StreamInput(self.rows, self.key, other_time),
        )


def _time_of(rows: DataFrame, column: str | None, uid: str) -> Column:
    """Return the event time of rows. Raises `InvalidRequestError`."""
    return F.timestamp_micros(LateRows.of(rows, column, uid=uid).event_time)
