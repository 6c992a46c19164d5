"""A driver that completes checkpoints and serves their metrics until it is killed: `monitored.py DIR PORT`."""

import sys
from pathlib import Path

from jobs.job import local_spark
from jobs.operators import Groups

from holdfast import stateful


def main(directory: Path, port: str) -> None:
    """Run the query."""
    spark = local_spark()
    spark.conf.set("spark.holdfast.checkpoint.dir", f"file://{directory}/checkpoints")
    spark.conf.set("spark.holdfast.job.id", "monitored")
    spark.conf.set("spark.holdfast.metrics.prometheus.port", port)
    operator = stateful(
        Groups(7),
        sink=lambda rows, _: rows.write.mode("overwrite").parquet(f"{directory}/output"),
        uid="groups",
        parallelism=2,
    )
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    query = (
        rows.writeStream.foreachBatch(operator)
        .option("checkpointLocation", f"{directory}/spark")
        .trigger(processingTime="1 second")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
