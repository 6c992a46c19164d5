"""A driver that stops its query in mid-batch: `python -m jobs.stops DIR HOW` says what its error is.

HOW is `in a job`, `in the sink`, or `in a sink that fails`.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from jobs.inside_spark import classes_of
from jobs.job import Job, local_spark
from jobs.operators import Groups
from jobs.signals import Signals
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession


class NeverEnds(Groups):
    """Says that its tasks have begun; then they wait for what never happens."""

    def __init__(self, signals: Signals) -> None:
        super().__init__(1)
        self.signals = signals

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from super().process(batches)
        self.signals.give("begun")
        self.signals.wait("never")


def wait_until_interrupted(spark: SparkSession) -> None:
    """Wait in the JVM, on the thread of the query, which raises an error when the query is stopped."""
    latch = classes_of(spark).java.util.concurrent.CountDownLatch(1)
    getattr(latch, "await")()


def main(directory: Path, how: str) -> None:
    """Run the job until it is stopped."""
    logging.basicConfig()  # shows also what py4j logs
    spark = local_spark()
    spark.sparkContext.setLogLevel("ERROR")
    job = Job(spark, directory / "job")
    job.feed(files=1)
    signals = Signals(directory / "signals")

    def collects(rows: DataFrame, batch_id: int) -> None:
        del batch_id
        rows.collect()

    def waits(rows: DataFrame, batch_id: int) -> None:
        del rows, batch_id
        signals.give("begun")
        wait_until_interrupted(spark)

    def fails(rows: DataFrame, batch_id: int) -> None:
        with suppress(Py4JJavaError):
            waits(rows, batch_id)
        raise RuntimeError("as planned")

    operator = {
        "in a job": job.operator(NeverEnds(signals), sink=collects),
        "in the sink": job.operator(Groups(1), sink=waits),
        "in a sink that fails": job.operator(Groups(1), sink=fails),
    }[how]
    query = job.start(operator, processingTime="0 seconds")
    signals.wait("begun")
    query.stop()
    print(query.exception())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
