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
    second: KeyedInput

    def __post_init__(self) -> None:
        rows, key, first_key = self.second.rows, self.second.key, self.first.key
        missing = [name for name in key if name not in rows.columns]
        if missing or len(key) != len(first_key):
            raise InvalidRequestError(
                f"the key of the second stream must be {len(first_key)} of its columns {rows.columns}, as many as "
                f"{first_key} of the first one; got {key}"
            )
        for name, other in zip(first_key, key, strict=True):
            first_type = self.first.rows.schema[name].dataType.simpleString()
            other_type = rows.schema[other].dataType.simpleString()
            if first_type != other_type:
                raise InvalidRequestError(
                    f"key column {other!r} of the second stream has type {other_type}, and {name!r} of the first one "
                    f"{first_type}; cast one of them"
                )
        used = {FIRST, SECOND, TIME} & {name.lower() for name in first_key}
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
        is_event = function.time_mode == "event"
        inputs = (self.first, self.second)
        if is_event and not any(each.has_watermark for each in inputs):
            LateRows.of(self.first.rows, None, uid=self.first.uid)  # for its error
        rows = self._union(
            *(
                _time_of(each, each.event_time) if is_event and each.has_watermark else None
                for each in inputs
            )
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
        function = IntervalJoin(
            time, other_time, lower, upper, kind=how, second_key=self.second.key
        )
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
        function = AsofJoin(time, other_time, tolerance, kind=how, second_key=self.second.key)
        return self._join(function, time, other_time)

    def _join(self, function: IntervalJoin | AsofJoin, time: str, other_time: str) -> KeyedOutput:
        first, second = self.first, self.second
        schema = joined_schema(first.rows.schema, second.rows.schema, first.key, second.key)
        rows = self._union(_time_of(first, time), _time_of(second, other_time))
        if not (first.has_watermark and second.has_watermark):
            _log.warning(
                "the join %r keeps rows until the watermark has passed them, but one of its streams has none: call "
                "withWatermark on both first. If their times were computed from columns with a watermark, ignore this warning",
                first.uid,
            )
        both = replace(first, rows=rows, event_time=None)
        return output_of(both, function, schema, event_time=TIME)

    def _union(self, time: Column | None, other_time: Column | None) -> DataFrame:
        return union_inputs(
            StreamInput(self.first.rows, self.first.key, time),
            StreamInput(self.second.rows, self.second.key, other_time),
        )


def _time_of(stream: KeyedInput, column: str | None) -> Column:
    """Return the event time of rows. Raises `InvalidRequestError`."""
    return F.timestamp_micros(LateRows.of(stream.rows, column, uid=stream.uid).event_time)
