"""A right-sizing sink: a stream of tiny batches becomes Parquet files of the wanted size."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from holdfast import StatefulFunction
from holdfast.backends import FunctionInitializationContext, ListStateDescriptor
from holdfast.spark.operators import Sink


class RightSize(StatefulFunction):
    """Holds rows back until there are enough of them for a file.

    Each subtask emits groups of exactly `rows_per_file` rows; what is left over waits in list
    state for the next micro-batch, and outlives a crash there.

    Args:
        rows_per_file: Rows in a group, at least 1.
        drain: Emit what is left over too. For a job's last run, like Flink's stop with drain.
    """

    def __init__(self, rows_per_file: int, *, drain: bool = False) -> None:
        self._rows_per_file = rows_per_file
        self._drain = drain

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self._rows = context.operator_state_store.get_list_state(
            ListStateDescriptor("rows", context.input_schema)
        )

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self._rows.add_all(batch)
        rows = self._rows.to_table()
        ready = len(rows) if self._drain else len(rows) - len(rows) % self._rows_per_file
        yield from rows.slice(0, ready).to_batches()
        self._rows.update(rows.slice(ready))


def parquet_sink(directory: str, rows_per_file: int) -> Sink:
    """A sink for `RightSize`: every group becomes one file below `directory`.

    Each batch has its own directory, which it overwrites. So a batch that is repeated after a
    crash replaces what it wrote before it.
    """

    def write(rows: DataFrame, batch_id: int) -> None:
        # Without a partition column Spark writes a file even if there is no row to write.
        (
            rows.withColumn("subtask", F.spark_partition_id())
            .write.mode("overwrite")
            .partitionBy("subtask")
            .option("maxRecordsPerFile", rows_per_file)
            .parquet(f"{directory}/batch={batch_id}")
        )

    return write
