"""Operators with keyed state on a real Spark."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from jobs.job import Job
from jobs.operators import Days, Totals, local_directories
from jobs.pyspark_versions import requires_pyspark
from jobs.session import session_with
from jobs.totals_by_key import ROWS, check_totals, run, totals
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from holdfast.errors import InvalidRequestError
from holdfast.spark.operators import Operator, Routing

pytestmark = pytest.mark.usefixtures("state_backend")


def sources(job: Job) -> set[str]:
    """Return the sources of the state of the last batch's subtasks."""
    subtasks = job.latest().metadata.operators["operator"].subtasks.values()
    return {subtask.statistics.restored_from for subtask in subtasks if subtask.statistics}


def test_keyed_state_survives_a_failure_and_rescaling(job: Job) -> None:
    job.feed(files=2, rows=ROWS)

    with pytest.raises(StreamingQueryException, match="as planned"):
        run(job, totals(job, job.write_and_fail_in(1)))
    assert job.checkpoint_ids() == [1]
    run(job, totals(job, parallelism=3))
    check_totals(job)
    job.feed(files=2, rows=ROWS)
    run(job, totals(job, parallelism=3))
    check_totals(job)
    assert "storage" not in sources(job)
    assert copies(job)


def copies(job: Job) -> list[Path]:
    """Return the local copies of segments, found without the library."""
    directories = job.spark.sparkContext.parallelize([0], 1).map(local_directories).first()
    return [
        file
        for directory in directories
        for file in (Path(directory) / "holdfast").glob("*/*")
        if len(file.name) == 32
    ]


def test_key_of_several_columns_may_be_null(job: Job) -> None:
    job.feed(files=2, rows=100)
    rows = job.stream().select(
        F.expr("if(id % 3 = 0, null, concat('n', id % 3))").alias("name"),
        F.expr("date_trunc('day', at)").alias("day"),
        "id",
    )
    operator = job.operator(
        Days(), key=["name", "day"], schema="name string, day timestamp, count long"
    )
    job.start(operator, rows, availableNow=True).awaitTermination()
    tables = [pq.read_table(file) for file in job.output.glob("batch=1/*.parquet")]
    rows_out = [tuple(row.values()) for table in tables for row in table.to_pylist()]
    midnight = datetime(1969, 12, 31, 23, tzinfo=UTC)
    assert sorted(rows_out, key=str) == [
        ("n1", midnight, 67),
        ("n2", midnight, 66),
        (None, midnight, 67),
    ]


@requires_pyspark("4.1", "type for times")
def test_unsupported_key_type_is_refused_on_the_driver(spark: SparkSession) -> None:
    operator = Operator(function=Totals(), uid="totals", parallelism=2, key=("key",))
    with session_with(spark, {"spark.sql.timeType.enabled": "true"}):
        rows = spark.range(1).withColumn("key", F.expr("time'10:00:00'"))
        with pytest.raises(InvalidRequestError, match=r"'key' .* 'totals' .* time64.* cast it"):
            Routing.of(rows, operator, 2, 128)
