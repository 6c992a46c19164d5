"""A driver that stops queries in mid-batch, each at another place: `python -m jobs.stops DIR`.

It prints the error of each, and the name of each to its log.
"""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from jobs.job import Job, local_spark
from jobs.operators import Groups
from jobs.processes import Signals
from jobs.session import jvm_classes
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

# The log of a task may be late. In this order no test misses it.
PLACES = ("in a job", "in the sink", "in a sink that fails")
"""The places in which a query is stopped."""


class NeverEnds(Groups):
    """Reports that its tasks have begun, and blocks them."""

    def __init__(self, signals: Signals) -> None:
        super().__init__(1)
        self.signals = signals

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from super().process(batches)
        self.signals.give("begun")
        self.signals.wait("never")


def wait_until_interrupted(spark: SparkSession) -> None:
    """Wait in the JVM, on the thread of the query, which raises an error when the query is stopped."""
    latch = jvm_classes(spark).java.util.concurrent.CountDownLatch(1)
    getattr(latch, "await")()


def stop_in_mid_batch(spark: SparkSession, directory: Path, place: str) -> str:
    """Run a job in this directory until it is stopped, and return its error."""
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
    }[place]
    query = job.start(operator, processingTime="0 seconds")
    signals.wait("begun")
    query.stop()
    return str(query.exception())


def main(directory: Path) -> None:
    """Stop a query at each place."""
    logging.basicConfig()  # shows also what py4j logs
    spark = local_spark()
    spark.sparkContext.setLogLevel("ERROR")
    errors = {}
    for place in PLACES:
        print(place, file=sys.stderr, flush=True)
        errors[place] = stop_in_mid_batch(spark, directory / place, place)
    print(json.dumps(errors))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
