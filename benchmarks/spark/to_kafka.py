"""Rows a second into Kafka, once by our sink, and at least once by Spark's.

    python -m benchmarks.spark.to_kafka [--rounds 3] [--batches 4] [--rows 200000]

It starts the broker of `infra/kafka` and stops it. In each round both sinks write the rows of the same operator, which has
state, into new topics of two partitions, starting with a different one. The messages have 8 bytes of key and 100 of value.
"""

import argparse
import shutil
import tempfile
import uuid
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame

from benchmarks.spark.__main__ import feed, measure, print_periods, print_rates, session
from benchmarks.spark.queries import PARALLELISM, PassThrough, Start
from holdfast import stateful
from holdfast.spark.sinks.kafka import KafkaSink
from infra.common import stop
from infra.kafka import server

_WARM_UP = 2


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds")
    parser.add_argument("--batches", type=int, default=4, help="counted batches per round")
    parser.add_argument("--rows", type=int, default=200_000, help="rows of a large batch")
    options = parser.parse_args()
    jars = ",".join(map(str, (server.connector() / "jars").glob("*.jar")))
    directory = Path(tempfile.mkdtemp(prefix="holdfast-benchmark-"))
    broker = server.start()
    try:
        spark = session(directory, jars=jars)
        queries = partial(sending_queries, broker["bootstrap"])
        small = 5 * options.batches
        for name, files, rows in (
            ("small", small, 1000),
            ("large", options.batches, options.rows),
        ):
            feed(directory / name, files=files + _WARM_UP, rows=rows)
            periods = measure(
                spark, directory, directory / name, queries, options.rounds, warm_up=_WARM_UP
            )
            if name == "small":
                print_periods(periods, small)
            else:
                print_rates(periods, rows, files)
        spark.stop()
    finally:
        stop(Path(broker["directory"]))
        shutil.rmtree(directory)


def sending_queries(bootstrap: str) -> dict[str, Start]:
    """Return the queries, each with a new topic."""
    return {
        "Spark's sink, at least once": _start(bootstrap, _send_by_spark),
        "KafkaSink, exactly once": _start(bootstrap, _send_once),
    }


def _start(bootstrap: str, send: Any) -> Start:
    topic = f"topic-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    [created] = admin.create_topics(
        [NewTopic(topic, num_partitions=2, replication_factor=1)]
    ).values()
    created.result(60)
    operator = stateful(
        PassThrough(), sink=send(bootstrap, topic), uid="pass", parallelism=PARALLELISM
    )

    def start(stream: DataFrame, checkpoint: str) -> Any:
        writer = stream.writeStream.foreachBatch(operator)
        return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()

    return start


def _messages(rows: DataFrame) -> DataFrame:
    return rows.selectExpr(
        "lpad(string(key), 8, '0') AS key", "rpad(string(value), 100, 'x') AS value"
    )


def _send_by_spark(bootstrap: str, topic: str) -> Any:
    def write(rows: DataFrame, _batch_id: int) -> None:
        writer = _messages(rows).write.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        writer.option("topic", topic).option("kafka.compression.type", "lz4").save()

    return write


def _send_once(bootstrap: str, topic: str) -> Any:
    class Sink(KafkaSink):
        def __call__(self, rows: DataFrame, batch_id: int) -> None:
            super().__call__(_messages(rows), batch_id)

    return Sink({"bootstrap.servers": bootstrap}, topic)


if __name__ == "__main__":
    main()
