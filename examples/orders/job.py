"""Orders from Kafka go into Delta, Iceberg and Kafka, each row once.

    python -m examples.orders.job --bootstrap HOST:PORT --checkpoints URI --dir DIR --jars FILE,… [--parallelism N]

The job reads what is in the topic `orders`, and ends. Started again, it resumes where it was: after a kill, and with
another parallelism.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import holdfast as hf
from holdfast.backends import FunctionInitializationContext
from holdfast.spark.by_key import KeyedRows
from holdfast.spark.operators import Sink
from holdfast.spark.sinks import delta, iceberg
from holdfast.spark.sinks.kafka import KafkaSink

ORDER = "id string, customer string, cents long, at timestamp"
ALERTS = "alerts"
"""The topic of alerts, and the name of its sink."""

ALERT_CENTS = 100_000
"""A customer's spending is an alert each time that it passes a multiple of this."""


class SpendingAlerts(hf.KeyedProcessFunction):
    """Yields a message for each multiple of `ALERT_CENTS` that a customer has spent."""

    def open(self, context: FunctionInitializationContext) -> None:
        self.spent = context.value_state("spent", int, default=0)

    def process_key(self, key: Any, rows: pa.RecordBatch) -> Iterator[tuple[str, str]]:
        before = self.spent.value()
        after = before + pc.sum(rows["cents"]).as_py()
        self.spent.update(after)
        for multiple in range(before // ALERT_CENTS + 1, after // ALERT_CENTS + 1):
            alert = {"customer": key.customer, "cents": multiple * ALERT_CENTS}
            yield key.customer, json.dumps(alert)


@dataclass(frozen=True, slots=True)
class Settings:
    """Places that the job reads from and writes to, and its parallelism."""

    bootstrap: str
    checkpoints: str
    directory: Path
    jars: str
    parallelism: int | None = None


@dataclass(frozen=True, slots=True)
class Sinks:
    """The sink of each table and topic."""

    orders: Sink
    totals: Sink
    minutes: Sink
    late: Sink
    rejected: Sink
    alerts: hf.CheckpointedSink


def sinks_of(settings: Settings) -> Sinks:
    """Return the sinks: two tables of Delta, three of Iceberg, and a topic."""
    delta_tables = settings.directory / "delta"
    return Sinks(
        orders=delta.append_once(f"{delta_tables}/orders"),
        totals=delta.merge(f"{delta_tables}/totals", on=["customer"]),
        minutes=iceberg.merge("lake.shop.minutes", on=["customer", "window_start"]),
        late=iceberg.append_once("lake.shop.late"),
        rejected=iceberg.append_once("lake.shop.rejected"),
        alerts=KafkaSink({"bootstrap.servers": settings.bootstrap}, ALERTS),
    )


def start(spark: SparkSession, settings: Settings, sinks: Sinks) -> StreamingQuery:
    """Start the query."""

    def key_by(key: str, uid: str, **options: Any) -> KeyedRows:
        return hf.keyed(ORDER, key, uid=uid, parallelism=settings.parallelism, **options)

    once = key_by("id", "once", persist=True).deduplicate(ttl=timedelta(days=1)).operator
    totals = key_by("customer", "totals").agg(orders=hf.count(), cents=hf.sum("cents")).operator
    minutes = (
        key_by("customer", "minutes", event_time="at", late_rows=True)
        .window(hf.tumbling_windows(timedelta(minutes=1)), time="at", emit="update")
        .agg(orders=hf.count())
        .operator
    )
    alerts = hf.stateful(
        SpendingAlerts(),
        uid="alerts",
        key="customer",
        parallelism=settings.parallelism,
        schema="key string, value string",
    )

    def process(batch: DataFrame, batch_id: int) -> None:
        sinks.rejected(batch.where("id IS NULL").select("message"), batch_id)
        orders = once.apply(batch.where("id IS NOT NULL").drop("message"))
        sinks.orders(orders, batch_id)
        sinks.totals(totals.apply(orders), batch_id)
        sinks.minutes(minutes.apply(orders), batch_id)
        sinks.late(minutes.side_output("late"), batch_id)
        sinks.alerts(alerts.apply(orders), batch_id)

    query = hf.stateful_query(
        process, once, totals, minutes, alerts, sinks={"alerts": sinks.alerts}
    )
    message = F.col("value").cast("string")
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", settings.bootstrap)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 500)
        .load()
        .select(message.alias("message"), F.from_json(message, ORDER).alias("order"))
        .select("message", "order.*")
        .withWatermark("at", "10 seconds")
        .writeStream.foreachBatch(query)
        .option("checkpointLocation", f"file://{settings.directory}/spark-checkpoint")
        .trigger(availableNow=True)
        .start()
    )


def session(settings: Settings) -> SparkSession:
    """Start Spark with Delta, Iceberg and Kafka."""
    return (
        hf.configure(SparkSession.builder, checkpoint_dir=settings.checkpoints, job_id="orders")
        .appName("orders")
        .master("local[2]")
        .config("spark.jars", settings.jars)
        .config("spark.ui.enabled", "false")
        .config("spark.python.daemon.module", "holdfast.worker_daemon")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config(
            "spark.sql.extensions",
            "io.delta.sql.DeltaSparkSessionExtension,"
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        )
        .config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        .config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.lake.type", "hadoop")
        .config("spark.sql.catalog.lake.warehouse", str(settings.directory / "iceberg"))
        # The tables are small.
        .config("spark.databricks.delta.snapshotPartitions", "1")
        .getOrCreate()
    )


def parser_of(module: str, description: str | None) -> argparse.ArgumentParser:
    """Return the parser of the settings."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--bootstrap", required=True, help="Kafka's brokers")
    parser.add_argument("--checkpoints", required=True, help="URI of a directory for state")
    parser.add_argument("--directory", type=Path, required=True, help="for tables and Spark's log")
    parser.add_argument("--jars", required=True, help="of Delta, Iceberg and Kafka's connector")
    parser.add_argument("--parallelism", type=int, help="of each operator")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job to the end of the topic."""
    settings = Settings(**vars(parser_of("examples.orders.job", __doc__).parse_args(arguments)))
    start(session(settings), settings, sinks_of(settings)).awaitTermination()
    return 0


if __name__ == "__main__":
    sys.exit(main())
