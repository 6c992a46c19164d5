"""A function in event time, for tests; a module of its own, so that executors can import it."""

from collections.abc import Iterator

import pyarrow as pa

from holdfast import StatefulFunction
from holdfast.backends import FunctionInitializationContext


class TellsTimes(StatefulFunction):
    """Yields a row for itself, and a row for each of its rows, all with the times of the batch.

    Args:
        keeps_late_rows: Whether it is given rows that are late.
    """

    schema = "id long, batch_time long, watermark long, late_watermark long"
    time_mode = "event"

    def __init__(self, *, keeps_late_rows: bool = False) -> None:
        self.keeps_late_rows = keeps_late_rows

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.times = [context.batch_time, context.watermark, context.times.late_watermark]

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ids = [None, *(i for batch in batches for i in batch["id"].to_pylist())]
        times = [pa.array([time] * len(ids), pa.int64()) for time in self.times]
        names = ["id", "batch_time", "watermark", "late_watermark"]
        yield pa.RecordBatch.from_arrays([pa.array(ids, pa.int64()), *times], names=names)
