"""Writes an archive of the classes of Spark, with which its drivers start in half the time.

    class-archive FILE

Drivers take it by `SPARK_SUBMIT_OPTS=-XX:SharedArchiveFile=FILE`. A JVM with another version or
other jars ignores it and loads its classes as usual.

Exit status: 0 done, 2 wrong usage, 3 can't be had here; the last line on stderr has the reason.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, os.fspath(Path(__file__).parents[2]))

from infra.common import UnavailableError, UsageError, run  # found by the line above

_LONGEST_S = 300.0

# Typical work of a driver; only classes used here are in the archive.
_DRIVER = """
import sys
from pyspark import SparkContext
from pyspark.sql import SparkSession, functions as F

directory = sys.argv[1]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
rows = spark.range(100).withColumn("key", F.col("id") % 7)
rows.write.parquet(f"{directory}/rows")
names = spark.createDataFrame([(1, "one")], "key long, name string")
named = rows.join(F.broadcast(names), "key", "left").selectExpr("id + 1 AS next", "upper(name) AS name")
named.where("next > 3").orderBy("next").union(named).toArrow()


def take(batch, batch_id):
    batch.persist()
    batch.repartition(2, "key").mapInArrow(lambda tables: tables, batch.schema).collect()
    batch.write.mode("overwrite").parquet(f"{directory}/out/{batch_id}")
    batch.unpersist()


providers = "org.apache.spark.sql.execution.streaming.state."
for provider in ("HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider"):
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", providers + provider)
    stream = spark.readStream.schema(rows.schema).parquet(f"{directory}/rows")
    query = (
        stream.groupBy("key").agg(F.sum("id").alias("total"))
        .writeStream.outputMode("update").foreachBatch(take).trigger(availableNow=True)
        .option("checkpointLocation", f"{directory}/{provider}").start()
    )
    query.awaitTermination()
gateway = SparkContext._gateway
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()  # the JVM ends, and writes the archive
sys.exit(gateway.proc.wait())
"""


def write_archive(file: Path) -> None:
    """Run a driver that leaves the archive."""
    file.parent.mkdir(parents=True, exist_ok=True)
    # In the folder of the file, so that it can be moved there when it is whole.
    with tempfile.TemporaryDirectory(dir=file.parent.absolute()) as directory:
        new = Path(directory) / file.name
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit='{new}' -Xlog:disable",
        }
        try:
            done = subprocess.run(
                [sys.executable, "-c", _DRIVER, directory],
                cwd=directory,
                env=environment,
                capture_output=True,
                text=True,
                timeout=_LONGEST_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise UnavailableError("the driver that makes the archive does not end") from error
        if done.returncode or not new.exists():
            reason = (done.stderr or done.stdout).strip().rpartition("\n")[2]
            raise UnavailableError(f"no archive was made: {reason}")
        new.replace(file)


def _command(arguments: list[str]) -> None:
    match arguments:
        case [file]:
            write_archive(Path(file))
        case _:
            raise UsageError


if __name__ == "__main__":
    run(_command, __doc__)
