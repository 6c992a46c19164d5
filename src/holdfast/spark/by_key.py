"""Streams by key: `keyed(rows, "k", …)` corresponds to Spark's `rows.groupBy("k")`.

`KeyedRows` has the operators: processors, functions, aggregates, windows. Their output is a `KeyedOutput`: a stream to
write, or the operator for queries with several operators.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql.types import StructType

from holdfast.backends.descriptors import StateTtlConfig
from holdfast.errors import InvalidRequestError
from holdfast.spark import sessions
from holdfast.spark.aggregates import (
    Aggregate,
    Aggregation,
    aggregate_rows,
    preparation_of,
)
from holdfast.spark.compat import StatefulProcessor
from holdfast.spark.connected_rows import ConnectedRows
from holdfast.spark.deduplication import Keep, deduplication_of
from holdfast.spark.enrichment import AsyncMap, Client, Lookup, LookupLimits, enriched_schema
from holdfast.spark.event_time import IdleTicks
from holdfast.spark.initial_state import InitialState
from holdfast.spark.keyed_input import KeyedInput, check_named, output_of
from holdfast.spark.keyed_output import KeyedOutput, KeyedStreamWriter
from holdfast.spark.operators import Broadcast, KeyedCoProcessFunction, StatefulFunction
from holdfast.spark.processors import (
    GroupStateFunction,
    GroupStateUserFunction,
    ProcessorFunction,
)
from holdfast.spark.row_changes import RowChanges, change_schema
from holdfast.spark.top_rows import TopRows, ranked_schema
from holdfast.spark.windowed_rows import WindowedRows
from holdfast.spark.windows import Early, Emit, WindowAssigner

__all__ = [
    "ConnectedRows",
    "IdleTicks",
    "KeyedOutput",
    "KeyedRows",
    "KeyedStreamWriter",
    "WindowedRows",
    "keyed",
]


def keyed(
    rows: DataFrame | StructType | str,
    key: str | Sequence[str],
    *,
    uid: str,
    parallelism: int | None = None,
    max_parallelism: int | None = None,
    persist: bool = False,
    event_time: str | None = None,
    late_rows: bool = False,
) -> "KeyedRows":
    """Return the rows of a stream by key; corresponds to Spark's `rows.groupBy(key)`.

    Args:
        rows: A stream. For a query of several operators, which only uses the output's `operator`, also the schema of
            the rows: a StructType or a DDL string, such as "customer long, amount double".
        key: The name of the key column, or the names of several.
        uid: Names the operator's state in checkpoints; keep it for the life of the job.
        parallelism: Number of subtasks, as for `stateful`. None keeps the number of the checkpoint, or takes Spark's
            default parallelism.
        max_parallelism: Number of key groups, as for `stateful`.
        persist: Keep the output rows of a batch in Spark's cache until the batch is done, so that the `foreachBatch`
            function can read them in several actions.
        event_time: The column that decides whether a row is late, as for `stateful`. None takes the column that was passed
            to `withWatermark`, which a schema doesn't tell.
        late_rows: Put late rows into the side output "late" of the operator instead of only counting them. The operator
            must be in event time: a deduplication with `time`, windows, or a function or processor with such timers.

    Raises:
        InvalidRequestError: A column doesn't exist, or an argument can't be used.
    """
    if isinstance(key, Column):
        message = f"the key must be names of columns, got {key}; add it as a column first, with withColumn"
        raise InvalidRequestError(message)
    if isinstance(rows, StructType | str):
        rows = sessions.any_session().createDataFrame([], rows)
    elif not hasattr(rows, "sparkSession"):
        message = (
            f"rows must be a DataFrame, or a schema if only the operator is used, got {rows!r}"
        )
        raise InvalidRequestError(message)
    columns = (key,) if isinstance(key, str) else tuple(key)
    missing = [name for name in columns if name not in rows.columns]
    if missing or not columns:
        message = f"the key must be names of columns, which are {rows.columns}, got {columns!r}"
        raise InvalidRequestError(message)
    return KeyedRows(
        rows, columns, uid, parallelism, max_parallelism, persist, event_time, late_rows
    )


class KeyedRows(KeyedInput):
    """Rows of a stream by key, made by `keyed`."""

    __slots__ = ()

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
            has_watermark=self.has_watermark,
            session=self.rows.sparkSession,
        )
        return output_of(self, function, function.output_schema)

    def process(
        self,
        function: StatefulFunction,
        schema: StructType | str | None = None,
        *,
        event_time: str | None = None,
        side_outputs: Mapping[str, StructType | str] | None = None,
        broadcast: Broadcast | None = None,
    ) -> KeyedOutput:
        """Run a function with keyed state on the rows, such as a `KeyedProcessFunction`.

        Args:
            function: The function.
            schema: Spark schema of its output rows; None for that of the input.
            event_time: The column of event time, as for `stateful`.
            side_outputs: Spark schemas of further outputs by name, as for `stateful`.
            broadcast: Returns the broadcast rows of a batch, as for `stateful`, if the function is a
                `KeyedBroadcastProcessFunction`.

        Raises:
            InvalidRequestError: An argument can't be used.
        """
        if isinstance(function, KeyedCoProcessFunction):
            message = "a KeyedCoProcessFunction takes two streams: keyed(rows, key, …).connect(other).process(…)"
            raise InvalidRequestError(message)
        return output_of(
            self,
            function,
            schema,
            event_time=event_time,
            side_outputs=side_outputs,
            broadcast=broadcast,
        )

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
                subtasks, without benefit if keys rarely have two rows in a batch. After a batch of more than 100,000
                rows it costs another shuffle.
            ttl: Time to live of a key's aggregates after its last row; None keeps them forever.
            renamed: The former names of aggregates, by their present names: `{"orders": "n"}`.
            added: Names of aggregates that the state does not have yet. They start without earlier rows.
            dropped: Names of stored aggregates to delete.
            aggregates: The aggregates, such as `holdfast.sum("price")`, by the names of their
                columns.

        Raises:
            InvalidRequestError: An aggregate has no name, or names collide, or a column doesn't exist.
        """
        check_named(unnamed)
        function = Aggregation(aggregates, ttl=ttl, renamed=renamed, added=added, dropped=dropped)
        schema = aggregate_rows(self.rows, self.key, aggregates).schema
        prepare = partial(preparation_of, key=self.key, aggregates=aggregates, combine=combine)
        return output_of(self, function, schema, prepare=prepare)

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
        return output_of(self, function, None, event_time=time)

    def async_map(
        self,
        function: Lookup,
        columns: StructType | str,
        *,
        client: Client | None = None,
        ttl: timedelta | None = None,
        max_concurrency: int = 64,
        timeout: timedelta = timedelta(seconds=30),
        max_attempts: int = 3,
    ) -> KeyedOutput:
        """Add columns to rows that an async function looks up by key, for example in a service.

        Each key of a batch is looked up once, and only if state does not have its columns; rows keep their order. A batch
        that is repeated looks its new keys up again.

        Args:
            function: Called in the executors with a key, a named tuple, and with the client if there is one. It returns the
                new columns as a tuple or a mapping, or None for nulls.
            columns: Spark schema of the new columns, such as "name string, tier string".
            client: Returns an async context manager, such as `aiohttp.ClientSession`, that is entered once in a subtask and
                batch with new keys; the function gets its value.
            ttl: How long the columns of a key stay in state, in processing time. None keeps them forever, and
                `timedelta(0)` never.
            max_concurrency: Maximum number of calls at a time in a subtask.
            timeout: Maximum duration of a call.
            max_attempts: Maximum number of calls for a key. If the last one fails, so does the batch: return None for keys
                whose errors you can do without.

        Raises:
            InvalidRequestError: An argument can't be used.
        """
        if ttl is not None and (not isinstance(ttl, timedelta) or ttl < timedelta(0)):
            raise InvalidRequestError(f"ttl must be a timedelta >= 0, or None, got {ttl!r}")
        limits = LookupLimits(
            max_concurrency=max_concurrency, timeout=timeout, max_attempts=max_attempts
        )
        added = self.rows.sparkSession.createDataFrame([], columns).schema
        schema = enriched_schema(self.rows.schema, added)
        return output_of(self, AsyncMap(function, client, ttl, limits), schema)

    def changes(self, *, by: str | None = None, deleted: str | None = None) -> KeyedOutput:
        """Keep the latest row of each key, and emit the changes of a batch, as for change data capture.

        The output has the key, `change` ("insert", "update" or "delete"), and the structs `before` and `after` with the columns
        of the rows; they are null where there is no row. A key changes at most once in a batch, and rows that equal the known row
        change nothing.

        Args:
            by: The column that orders the rows of a key: rows that are less than the known one are stale, and dropped. Null is
                less than all values. None takes the last row to arrive.
            deleted: A boolean column that is true in rows that delete their key.

        Raises:
            InvalidRequestError: A column doesn't exist, or has an unsuitable type.
        """
        schema = self.rows.schema
        return output_of(self, RowChanges(schema, by, deleted), change_schema(schema, self.key))

    def top_n(self, n: int, *, by: str, ascending: bool = False) -> KeyedOutput:
        """Keep the greatest rows of each key by a column, and emit them when a batch changes them.

        The output has the columns of the rows and `rank`, from 1: all rows of a key that are among its first, in each batch that
        changes them. Written by key and rank, a table has the current ones.

        Args:
            n: Number of rows of each key.
            by: The column. Null comes last; of equal rows the first to arrive comes first.
            ascending: Keep the least rows instead.

        Raises:
            InvalidRequestError: A column doesn't exist, or has an unsuitable type; or the rows have a column `rank`.
        """
        schema = self.rows.schema
        return output_of(self, TopRows(schema, n, by, ascending=ascending), ranked_schema(schema))

    def connect(
        self,
        rows: DataFrame,
        key: str | Sequence[str] | None = None,
        *,
        event_time: str | None = None,
    ) -> ConnectedRows:
        """Return these rows with those of a second stream by key, for one operator on both.

        Args:
            rows: The second stream.
            key: The names of its key columns, in the order of the first stream's; None if they have the same names.
            event_time: The column of the second stream that decides whether a row is late; None for the column that was
                passed to `withWatermark`.

        Raises:
            InvalidRequestError: A column doesn't exist, or the keys have different types.
        """
        if key is None:
            key = self.key
        names = (key,) if isinstance(key, str) else tuple(key)
        return ConnectedRows(self, replace(self, rows=rows, key=names, event_time=event_time))

    def window(
        self,
        windows: WindowAssigner,
        *,
        time: str,
        allowed_lateness: timedelta = timedelta(0),
        emit: Emit = "append",
        early: Early | None = None,
    ) -> WindowedRows:
        """Return the rows by windows. All windows except count windows are in event time, and need a watermark.

        Args:
            windows: Windows, such as `holdfast.tumbling_windows(size)`.
            time: The column of event time. Count windows number the rows of a batch by it.
            allowed_lateness: How long a complete window is kept for late rows.
            emit: "append" emits a window when the watermark has passed it; "update" in each batch that has
                rows of it.
            early: With "append", also emit a window before it ends: after a number of new rows, or when the watermark passes
                a multiple of an interval after new rows.

        Raises:
            InvalidRequestError: There is no such column of timestamps, or arguments can't be combined.
        """
        windowed = WindowedRows(self, windows, time, allowed_lateness, emit, early)
        windowed.check()
        return windowed

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
        return output_of(self, function, function.output_schema, begin=begin)
