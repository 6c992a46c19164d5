"""The measured queries. All count rows by key and send the counts to the driver."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from holdfast import StatefulFunction, StatefulProcessor, StatefulProcessorHandle, stateful
from holdfast.backends import FunctionInitializationContext, ListStateDescriptor

SCHEMA = "key long, value double"
PARALLELISM = 2

_COUNTS = pa.schema([("key", pa.int64()), ("n", pa.int64())])
_COUNTS_IN_SPARK = "key long, n long"

Start = Callable[[DataFrame, str], Any]
"""Takes the stream and Spark's checkpoint directory, and starts the query."""


def sum_counts(tables: list[pa.Table]) -> pa.Table:
    """The sum of counts by key."""
    rows = pa.concat_tables(tables)
    return rows.group_by("key").aggregate([("n", "sum")]).rename_columns(["key", "n"])


def of_batch(batch: pa.RecordBatch) -> pa.Table:
    """Each row counts once."""
    ones = pa.repeat(pa.scalar(1, pa.int64()), len(batch))
    return pa.Table.from_arrays([batch["key"], ones], schema=_COUNTS)


class RunningCount(StatefulFunction):
    """Yields the counts that have changed, over all batches."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        descriptor = ListStateDescriptor("counts", _COUNTS)
        self._counts = context.operator_state_store.get_list_state(descriptor)

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        new = sum_counts([_COUNTS.empty_table(), *(of_batch(batch) for batch in batches)])
        all_counts = sum_counts([self._counts.to_table(), new])
        self._counts.update(all_counts)
        changed = new.select(["key"]).join(all_counts, "key")
        yield from changed.cast(_COUNTS).to_batches()


class SparkRunningCount(StatefulProcessor):
    """Running counts in Spark's state, one value per key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("n", "n long")

    def handleInputRows(  # noqa: N802  # Spark's names
        self,
        key: tuple[int],
        rows: Iterator[pd.DataFrame],
        timerValues: object,  # noqa: ARG002, N803
    ) -> Iterator[pd.DataFrame]:
        before = self._count.get()
        count = (before[0] if before else 0) + sum(len(part) for part in rows)
        self._count.update((count,))
        yield pd.DataFrame({"key": [key[0]], "n": [count]})

    def close(self) -> None:
        """There is nothing to close."""


class PassThrough(StatefulFunction):
    """Lets all rows through, and keeps how many there were."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        descriptor = ListStateDescriptor("rows", pa.int64())
        self._rows = context.operator_state_store.get_list_state(descriptor)

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sum(self._rows)
        for batch in batches:
            rows += len(batch)
            yield batch
        self._rows.update([rows])


def _count_without_state(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    tables = [_COUNTS.empty_table(), *(of_batch(batch) for batch in batches)]
    yield from sum_counts(tables).to_batches()


def _pass_through(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _collect(rows: DataFrame, _batch_id: int) -> None:
    rows.collect()


def _drop(rows: DataFrame, _batch_id: int) -> None:
    rows.write.format("noop").mode("overwrite").save()


def shuffle(rows: DataFrame) -> DataFrame:
    """Partition rows by key, as many parts as there are subtasks."""
    return rows.repartitionById(PARALLELISM, F.expr(f"cast(pmod(key, {PARALLELISM}) as int)"))


def for_each_batch(function: Callable[[DataFrame, int], None]) -> Start:
    """Return a query that calls a function for each batch."""

    def start(stream: DataFrame, checkpoint: str) -> Any:
        writer = stream.writeStream.foreachBatch(function)
        return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()

    return start


def _transform_with_state(stream: DataFrame, checkpoint: str) -> Any:
    counts = stream.groupBy("key").transformWithStateInPandas(
        SparkRunningCount(), _COUNTS_IN_SPARK, "update", "none"
    )
    writer = counts.writeStream.outputMode("update").foreachBatch(_collect)
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def counting_queries() -> dict[str, Start]:
    """Small batches: what a micro-batch costs. New each time: nothing of an earlier round is left."""

    def plain(rows: DataFrame, batch_id: int) -> None:
        _collect(rows.mapInArrow(_count_without_state, _COUNTS_IN_SPARK), batch_id)

    def plain_after_shuffle(rows: DataFrame, batch_id: int) -> None:
        plain(shuffle(rows), batch_id)

    def holdfast(**options: str) -> Start:
        operator = stateful(
            RunningCount(),
            sink=_collect,
            uid="count",
            parallelism=PARALLELISM,
            schema=_COUNTS_IN_SPARK,
            **options,  # type: ignore[arg-type]
        )
        return for_each_batch(operator)

    return {
        "mapInArrow + collect, no state": for_each_batch(plain),
        "the same after a shuffle": for_each_batch(plain_after_shuffle),
        "Holdfast": holdfast(),
        "Holdfast, by key": holdfast(key="key"),
        "transformWithStateInPandas": _transform_with_state,
    }


def passing_queries() -> dict[str, Start]:
    """Large batches: what a row costs."""

    def plain(rows: DataFrame, batch_id: int) -> None:
        _drop(rows.mapInArrow(_pass_through, SCHEMA), batch_id)

    def plain_after_shuffle(rows: DataFrame, batch_id: int) -> None:
        plain(shuffle(rows), batch_id)

    def holdfast(**options: str | bool) -> Start:
        operator = stateful(
            PassThrough(),
            sink=_drop,
            uid="pass",
            parallelism=PARALLELISM,
            **options,  # type: ignore[arg-type]
        )
        return for_each_batch(operator)

    return {
        "mapInArrow, no state": for_each_batch(plain),
        "the same after a shuffle": for_each_batch(plain_after_shuffle),
        "Holdfast": holdfast(),
        "Holdfast, by key": holdfast(key="key"),
        "Holdfast, forward": holdfast(forward=True),
    }
