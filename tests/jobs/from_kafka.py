"""A driver whose jobs read topics: `python -m jobs.from_kafka DIR BOOTSTRAP JARS killed|resumed`.

There is a job for each point, in its own directory, whose topic has its name. They block in their second batch, and when all do,
the driver is killed with its JVM; a driver that is resumed reads the rest.
"""

import sys
from functools import partial
from pathlib import Path

from jobs.job import LOCAL, Job, connect
from jobs.operators import Groups
from jobs.two_phases import GROUP, die_at_commits, job_of
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

ROWS_PER_BATCH = 100
POINTS = {"from_before": "before the metadata", "from_after": "after the metadata"}
FAULT = "Cannot invoke"
"""The start of the NullPointerException of the connector for PySpark 4.1, if the first batch of a run is a repeated one."""


def stream(job: Job, bootstrap: str, topic: str) -> DataFrame:
    """Return the messages as rows of the job's schema."""
    return (
        job.spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ROWS_PER_BATCH)
        .load()
        .selectExpr(
            "CAST(CAST(value AS STRING) AS LONG) AS id",
            "timestamp AS at",
            "CAST(key AS STRING) AS name",
        )
    )


def run(job: Job, bootstrap: str, topic: str) -> None:
    """Run a job until it has read its topic."""
    while True:
        rows = stream(job, bootstrap, topic)
        query = job.start(job.operator(Groups(GROUP)), rows, availableNow=True)
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if FAULT not in str(error):
                raise
            print("started again after a NullPointerException of the connector")
        else:
            return


def main(directory: Path, bootstrap: str, jars: str, mode: str) -> None:
    """Run the jobs until they block and are killed, or until they have read their topics."""
    spark = connect("local[4]", LOCAL | {"spark.jars": jars})
    jobs = {name: job_of(spark, directory, name) for name in POINTS}
    if mode == "resumed":
        for name, job in jobs.items():
            run(job, bootstrap, name)
        spark.stop()
        return
    runs = {name: partial(run, job, bootstrap, name) for name, job in jobs.items()}
    die_at_commits(spark, directory, POINTS, runs)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
