"""A streaming job: flights come in small files and go out in Parquet files of one size.

    python -m examples.flights_job --source DIR --dir DIR [--checkpoints URI] [--drain] [--master URL]

It reads what is in the source directory, one file a micro-batch, and ends. Started again, it goes
on where it was, also if it was killed. With `--drain` it writes the rest of the rows too.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from examples._places import JOB_ID, Places
from examples.right_size import RightSize, parquet_sink
from holdfast.spark import stateful

_REPOSITORY = Path(__file__).resolve().parent.parent
ROWS_PER_FILE = 10_000
PARALLELISM = 2
SCHEMA = """
    year long, month long, day long, dep_time long, sched_dep_time long, dep_delay long,
    arr_time long, sched_arr_time long, arr_delay long, carrier string, flight long,
    tailnum string, origin string, dest string, air_time long, distance long, hour long,
    minute long, time_hour timestamp
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job to the end of the source."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights_job", description=__doc__)
    parser.add_argument("--source", type=Path, required=True, help="directory of Parquet files")
    parser.add_argument("--dir", type=Path, required=True, help="directory for all that it writes")
    parser.add_argument("--checkpoints", metavar="URI", help="checkpoints go here, not below --dir")
    parser.add_argument("--drain", action="store_true", help="write the rest of the rows too")
    parser.add_argument(
        "--master", default="local[2]", help="Spark's master; local[2] if not given"
    )
    options = parser.parse_args(arguments)
    places = Places(options.dir.resolve(), options.checkpoints)
    places.root.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        filename=places.job_log, level=logging.INFO, format="%(asctime)s %(name)s %(message)s"
    )
    logging.getLogger("py4j").setLevel(logging.WARNING)

    spark = session(places, options.master)
    # The files' modification times are their order. Paths have their scheme, because a bare one is
    # in HDFS where `HADOOP_CONF_DIR` says so.
    flights = (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .option("latestFirst", False)
        .parquet(f"file://{options.source.resolve()}")
    )
    query = (
        flights.writeStream.foreachBatch(
            stateful(
                RightSize(ROWS_PER_FILE, drain=options.drain),
                sink=parquet_sink(f"file://{places.output}", ROWS_PER_FILE),
                uid="right-size",
                parallelism=PARALLELISM,
            )
        )
        .option("checkpointLocation", f"file://{places.spark_checkpoints}")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()
    return 0


def session(places: Places, master: str) -> SparkSession:
    """Spark on two cores."""
    return (
        SparkSession.builder.master(master)
        .appName("right-size flights")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", str(places.scratch))
        .config("spark.sql.warehouse.dir", f"file://{places.scratch}/warehouse")
        # Executors that are processes of their own find the modules of this one.
        .config("spark.executorEnv.PYTHONPATH", str(_REPOSITORY))
        .config("spark.holdfast.checkpoint.dir", places.checkpoints)
        .config("spark.holdfast.checkpoint.num-retained", "3")
        .config("spark.holdfast.job.id", JOB_ID)
        # All state in files, so that one can see from outside how far a subtask is.
        .config("spark.holdfast.state.inline-threshold", "0")
        .getOrCreate()
    )


if __name__ == "__main__":
    sys.exit(main())
