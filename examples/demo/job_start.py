"""The start of the demo's jobs: options, a log, Spark, and the stream of flights."""

import argparse
import logging
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from examples.demo.places import Job, Places

_REPOSITORY = Path(__file__).resolve().parents[2]
SCHEMA = """
    year long, month long, day long, dep_time long, sched_dep_time long, dep_delay long,
    arr_time long, sched_arr_time long, arr_delay long, carrier string, flight long,
    tailnum string, origin string, dest string, air_time long, distance long, hour long,
    minute long, time_hour timestamp
"""


def options_of(job: Job, description: str | None) -> argparse.ArgumentParser:
    """The options that all jobs have."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {job.package}.{job.name}_job", description=description
    )
    parser.add_argument("--source", type=Path, required=True, help="directory of Parquet files")
    parser.add_argument("--dir", type=Path, required=True, help="directory for all its files")
    parser.add_argument("--checkpoints", metavar="URI", help="checkpoints go here, not below --dir")
    parser.add_argument(
        "--master", default="local[2]", help="Spark's master; local[2] if not given"
    )
    return parser


def places_of(job: Job, options: argparse.Namespace) -> Places:
    """Return the places of the job's files, and start its log there."""
    places = Places(options.dir.resolve(), job, options.checkpoints)
    places.root.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        filename=places.job_log, level=logging.INFO, format="%(asctime)s %(name)s %(message)s"
    )
    logging.getLogger("py4j").setLevel(logging.WARNING)
    return places


def session(places: Places, master: str) -> SparkSession:
    """Spark on two cores."""
    return (
        SparkSession.builder.master(master)
        .appName(f"demo: {places.job.name}")
        .config("spark.ui.enabled", "false")
        .config("spark.python.daemon.module", "holdfast.worker_daemon")
        # Spark's own checkpoints are on local disk, where the default starts a `readlink` for each rename.
        .config(
            "spark.sql.streaming.checkpointFileManagerClass",
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
        )
        .config("spark.local.dir", str(places.scratch))
        .config("spark.sql.warehouse.dir", f"file://{places.scratch}/warehouse")
        # Executors in separate processes find the modules of this one.
        .config("spark.executorEnv.PYTHONPATH", str(_REPOSITORY))
        .config("spark.holdfast.checkpoint.dir", places.checkpoints)
        .config("spark.holdfast.checkpoint.num-retained", "3")
        .config("spark.holdfast.job.id", places.job.name)
        # All state in files, so that one can see from outside how far a subtask is.
        .config("spark.holdfast.state.inline-threshold", "0")
        .getOrCreate()
    )


def flights(spark: SparkSession, source: Path) -> DataFrame:
    """The stream of flights, a file a micro-batch."""
    # The files' modification times are their order. Paths have their scheme, because a bare one is
    # in the HDFS of `HADOOP_CONF_DIR`.
    return (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .option("latestFirst", False)
        .parquet(f"file://{source.resolve()}")
    )
