"""A driver that stops its query in mid-batch: `python -m jobs.stops DIR HOW` says what its error is.

HOW is `in a job`, `in the sink`, or `in a sink that fails`.
"""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from jobs.job import Job, local_spark
from jobs.operators import Groups
from jobs.signals import Signals
from pyspark.sql import DataFrame


class NeverEnds(Groups):
    """Its tasks wait for what never happens, once they are told of."""

    def __init__(self, signals: Signals) -> None:
        super().__init__(1)
        self.signals = signals

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from super().process(batches)
        self.signals.give("begun")
        self.signals.wait("never")


def main(directory: Path, how: str) -> None:
    """Run the job until it is stopped."""
    logging.basicConfig()  # shows also what py4j logs
    spark = local_spark()
    spark.sparkContext.setLogLevel("ERROR")
    job = Job(spark, directory / "job")
    job.feed(files=1)
    signals = Signals(directory / "signals")

    def sink(rows: DataFrame, batch_id: int) -> None:
        del batch_id
        if how != "in a job":
            signals.give("begun")
            (running,) = spark.streams.active
            while running.isActive:
                pass
        if how == "in a sink that fails":
            raise RuntimeError("as planned")
        rows.collect()

    function = NeverEnds(signals) if how == "in a job" else Groups(1)
    query = job.start(job.operator(function, sink=sink), processingTime="0 seconds")
    signals.wait("begun")
    query.stop()
    print(query.exception())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
