"""Streams by key: `keyed(rows, "k", …)` corresponds to Spark's `rows.groupBy("k")`.

`KeyedRows` has the operators: processors, functions, aggregates, windows. Their output is a `KeyedOutput`: a stream to
write, or the operator for queries with several operators.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Literal

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql.types import StructField, StructType

from holdfast.backends.descriptors import StateTtlConfig
from holdfast.errors import InvalidRequestError
from holdfast.spark.aggregates import (
    Aggregate,
    Aggregation,
    Panes,
    aggregate_rows,
    need_combining,
    preparation_of,
)
from holdfast.spark.compat import StatefulProcessor
from holdfast.spark.deduplication import Keep, deduplication_of
from holdfast.spark.event_time import IdleTicks, LateRows, has_watermark
from holdfast.spark.initial_state import InitialState
from holdfast.spark.keyed_output import KeyedOutput, KeyedStreamWriter
from holdfast.spark.operators import Operator, StatefulFunction
from holdfast.spark.processors import (
    GroupStateFunction,
    GroupStateUserFunction,
    ProcessorFunction,
)
from holdfast.spark.windows import (
    END,
    START,
    WindowAssigner,
    WindowedAggregation,
    WindowedFunction,
    WindowFunction,
)

__all__ = ["IdleTicks", "KeyedOutput", "KeyedRows", "KeyedStreamWriter", "WindowedRows", "keyed"]

_log = logging.getLogger(__name__)

Emit = Literal["append", "update"]


def keyed(
    rows: DataFrame,
    key: str | Sequence[str],
    *,
    uid: str,
    parallelism: int | None = None,
    max_parallelism: int | None = None,
    persist: bool = False,
) -> "KeyedRows":
    """Return the rows of a stream by key; corresponds to Spark's `rows.groupBy(key)`.

    Args:
        rows: A stream; or a DataFrame with the same columns, if only the operator is used.
        key: The name of the key column, or the names of several.
        uid: Names the operator's state in checkpoints; keep it for the life of the job.
        parallelism: Number of subtasks, as for `stateful`. None keeps the number of the checkpoint, or takes Spark's
            default parallelism.
        max_parallelism: Number of key groups, as for `stateful`.
        persist: Keep the output rows of a batch in Spark's cache until the batch is done, so that the `foreachBatch`
            function can read them in several actions.

    Raises:
        InvalidRequestError: A column doesn't exist, or an argument can't be used.
    """
    if isinstance(key, Column):
        message = f"the key must be names of columns, got {key}; add it as a column first, with withColumn"
        raise InvalidRequestError(message)
    columns = (key,) if isinstance(key, str) else tuple(key)
    missing = [name for name in columns if name not in rows.columns]
    if missing or not columns:
        message = f"the key must be names of columns, which are {rows.columns}, got {columns!r}"
        raise InvalidRequestError(message)
    return KeyedRows(rows, columns, uid, parallelism, max_parallelism, persist)


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """Rows of a stream by key, made by `keyed`."""

    rows: DataFrame
    key: tuple[str, ...]
    uid: str
    parallelism: int | None
    max_parallelism: int | None
    persist: bool

    def transformWithState(  # noqa: N802, PLR0917  # Spark's name and arguments
        self,
        statefulProcessor: StatefulProcessor,  # noqa: N803
        outputStructType: StructType | str,  # noqa: N803  # Spark's
        outputMode: str,  # noqa: N803
        timeMode: str,  # noqa: N803
        initialState: GroupedData | DataFrame | None = None,  # noqa: N803
        eventTimeColumnName: str = "",  # noqa: N803
    ) -> KeyedOutput:
        """Run a processor of PySpark on the rows, with `Row`s as input and output.

        Arguments are those of `GroupedData.transformWithState`. The rows of `initialState` are only read in the operator's
        first batch; it may also be a DataFrame with columns of the key's names. `eventTimeColumnName` must be empty,
        because no Spark operator follows.

        Raises:
            InvalidRequestError: An argument can't be used, or the time mode is EventTime and the rows have no
                watermark.
            StatefulProcessorError: A declaration of the processor is not valid, for Spark too.
        """
        function = ProcessorFunction(
            statefulProcessor,
            outputStructType,
            outputMode,
            timeMode,
            flavour="row",
            session=self.rows.sparkSession,
        )
        return self._run_processor(function, initialState, eventTimeColumnName)

    def transformWithStateInPandas(  # noqa: N802, PLR0917  # Spark's name and arguments
        self,
        statefulProcessor: StatefulProcessor,  # noqa: N803
        outputStructType: StructType | str,  # noqa: N803  # Spark's
        outputMode: str,  # noqa: N803
        timeMode: str,  # noqa: N803
        initialState: GroupedData | DataFrame | None = None,  # noqa: N803
        eventTimeColumnName: str = "",  # noqa: N803
    ) -> KeyedOutput:
        """Run a processor of PySpark on the rows, with pandas DataFrames as input and output.

        Otherwise as `transformWithState`.
        """
        function = ProcessorFunction(
            statefulProcessor,
            outputStructType,
            outputMode,
            timeMode,
            flavour="pandas",
            session=self.rows.sparkSession,
        )
        return self._run_processor(function, initialState, eventTimeColumnName)

    def applyInPandasWithState(  # noqa: N802  # Spark's name and arguments
        self,
        func: GroupStateUserFunction,
        outputStructType: StructType | str,  # noqa: N803  # Spark's
        stateStructType: StructType | str,  # noqa: N803  # Spark's
        outputMode: str,  # noqa: N803  # Spark's
        timeoutConf: str,  # noqa: N803  # Spark's
    ) -> KeyedOutput:
        """Run a function with a state for each key on the rows, with pandas DataFrames as input and output.

        Arguments are those of `GroupedData.applyInPandasWithState`; the function gets Spark's own `GroupState`.

        Raises:
            AnalysisException: The output mode is Complete.
            IllegalArgumentException: The output mode is unknown.
            InvalidRequestError: Another argument can't be used, or the timeout is EventTimeTimeout and the rows have
                no watermark.
        """
        function = GroupStateFunction(
            func,
            outputStructType,
            stateStructType,
            outputMode,
            timeoutConf,
            has_watermark=has_watermark(self.rows.schema),
            session=self.rows.sparkSession,
        )
        return _output(self, function, function.output_schema)

    def process(
        self,
        function: StatefulFunction,
        schema: StructType | str | None = None,
        *,
        event_time: str | None = None,
    ) -> KeyedOutput:
        """Run a function with keyed state on the rows, such as a `KeyedProcessFunction`.

        Args:
            function: The function.
            schema: Spark schema of its output rows; None for that of the input.
            event_time: The column of event time, as for `stateful`.

        Raises:
            InvalidRequestError: An argument can't be used.
        """
        return _output(self, function, schema, event_time=event_time)

    def agg(
        self,
        *unnamed: object,
        combine: bool = True,
        ttl: StateTtlConfig | None = None,
        renamed: Mapping[str, str] | None = None,
        added: Collection[str] = (),
        dropped: Collection[str] = (),
        **aggregates: Aggregate,
    ) -> KeyedOutput:
        """Keep aggregates of each key, and emit those that a batch has changed.

        A restarted query must have the aggregates of its state. Declare differences with `renamed`,
        `added` and `dropped`. You can leave these arguments in place: applied changes have no further effect.

        Args:
            unnamed: Not supported: a column needs a name.
            combine: Whether Spark combines all rows of a key in a batch before they are sent to their
                subtasks. It costs another shuffle, without benefit if keys rarely have two rows in a batch.
            ttl: Time to live of a key's aggregates after its last row; None keeps them forever.
            renamed: The former names of aggregates, by their present names: `{"orders": "n"}`.
            added: Names of aggregates that the state does not have yet. They start without earlier rows.
            dropped: Names of stored aggregates to delete.
            aggregates: The aggregates, such as `holdfast.sum("price")`, by the names of their
                columns.

        Raises:
            InvalidRequestError: An aggregate has no name, or names collide, or a column doesn't exist.
        """
        _check_named(unnamed)
        function = Aggregation(aggregates, ttl=ttl, renamed=renamed, added=added, dropped=dropped)
        schema = aggregate_rows(self.rows, self.key, aggregates).schema
        prepare = partial(preparation_of, key=self.key, aggregates=aggregates, combine=combine)
        return _output(self, function, schema, prepare=prepare)

    def deduplicate(
        self,
        *,
        keep: Keep = "first",
        by: str | None = None,
        ttl: timedelta | StateTtlConfig | None = None,
        time: str | None = None,
    ) -> KeyedOutput:
        """Drop duplicates: rows whose key was in an earlier row, in this batch or before.

        Args:
            keep: "first" passes the first row of each key to arrive. "last" passes the rows that are greater in the
                column `by` than all earlier rows of their key. In both cases at most one row of a key passes in a batch.
            by: The column that orders the rows with "last". Null is less than all values; of equal rows the first passes.
            ttl: How long a key is remembered after its first row, or after its greatest row with "last". It is processing
                time, unless `time` is passed. None remembers keys forever.
            time: The column of event time. A key is then forgotten when the watermark reaches the time of its row plus
                `ttl`, by default the watermark's delay, as in Spark's `dropDuplicatesWithinWatermark`; and late rows
                are dropped. With "last" it must be the column `by`.

        Raises:
            InvalidRequestError: An argument can't be used, or a column doesn't exist or has an unsuitable type.
        """
        function = deduplication_of(self.rows.schema, keep=keep, by=by, ttl=ttl, time=time)
        return _output(self, function, None, event_time=time)

    def window(
        self,
        windows: WindowAssigner,
        *,
        time: str,
        allowed_lateness: timedelta = timedelta(0),
        emit: Emit = "append",
    ) -> "WindowedRows":
        """Return the rows by windows of event time; they need a watermark.

        Args:
            windows: Windows, such as `holdfast.tumbling_windows(size)`.
            time: The column of event time.
            allowed_lateness: How long a complete window is kept for late rows.
            emit: "append" emits a window when the watermark has passed it; "update" in each batch that has
                rows of it.

        Raises:
            InvalidRequestError: There is no such column of timestamps.
        """
        LateRows.of(self.rows, time, uid=self.uid)  # for its errors
        if emit == "append" and not has_watermark(self.rows.schema):
            _log.warning(
                "windows of operator %r are emitted when the watermark has passed them, but no column of its rows has "
                "a watermark: call withWatermark first, or pass emit='update'. If the column %r was computed from the one "
                "with the watermark, ignore this warning",
                self.uid,
                time,
            )
        return WindowedRows(self, windows, time, allowed_lateness, emit)

    def _run_processor(
        self,
        function: ProcessorFunction,
        initial_state: GroupedData | DataFrame | None,
        event_time_column: str,
    ) -> KeyedOutput:
        if event_time_column:
            raise InvalidRequestError(
                f"eventTimeColumnName must be empty, got {event_time_column!r}: it names the event time for a following "
                "Spark operator, but the rows go to the foreachBatch function"
            )
        begin = None
        if initial_state is not None:
            begin = InitialState.of(initial_state, self.rows, self.key).union_with
        return _output(self, function, function.output_schema, begin=begin)


@dataclass(frozen=True, slots=True)
class WindowedRows:
    """Rows of a stream by key and window, made by `KeyedRows.window`."""

    keyed: KeyedRows
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
        _check_named(unnamed)
        keyed_rows = self.keyed
        function = WindowedAggregation(
            aggregates,
            self.windows,
            renamed=renamed,
            added=added,
            dropped=dropped,
            **self._options(),
        )
        panes = Panes(self.time)
        prepare = partial(
            preparation_of,
            key=keyed_rows.key,
            aggregates=aggregates,
            combine=bool(need_combining(aggregates)),
            panes=panes,
        )
        columns = aggregate_rows(keyed_rows.rows, keyed_rows.key, aggregates).schema.fields
        width = len(keyed_rows.key)
        time = keyed_rows.rows.schema[self.time].dataType
        bounds = [StructField(START, time), StructField(END, time)]
        schema = StructType([*columns[:width], *bounds, *columns[width:]])
        return _output(keyed_rows, function, schema, prepare=prepare)

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
        return _output(self.keyed, windowed, schema)

    def _options(self) -> dict[str, Any]:
        return {"time": self.time, "allowed_lateness": self.allowed_lateness, "emit": self.emit}


def _check_named(unnamed: tuple[object, ...]) -> None:
    if unnamed:
        raise InvalidRequestError(
            f"aggregate {unnamed[0]!r} has no name; name its column, such as agg(orders=count())"
        )


def _output(
    keyed_rows: KeyedRows,
    function: StatefulFunction,
    schema: StructType | str | None,
    *,
    event_time: str | None = None,
    prepare: Callable[[DataFrame], Callable[[DataFrame], DataFrame]] | None = None,
    begin: Callable[[DataFrame], DataFrame] | None = None,
) -> KeyedOutput:
    operator = Operator(
        function=function,
        uid=keyed_rows.uid,
        parallelism=keyed_rows.parallelism,
        max_parallelism=keyed_rows.max_parallelism,
        key=keyed_rows.key,
        schema=schema,
        persist=keyed_rows.persist,
        event_time=event_time,
        prepare=prepare,
        begin=begin,
    )
    if operator.drops_late_rows:
        LateRows.of(keyed_rows.rows, event_time, uid=keyed_rows.uid)  # for its errors
    return KeyedOutput(keyed_rows.rows, operator)
