"""Sinks that join their rows with none, which lets Spark leave out what the join would have read."""

from pathlib import Path

import pytest
from jobs.job import Job
from jobs.operators import AwaitsNextPass, DropRowsAfter, Groups
from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.exhaustive  # of two rare plans


@pytest.fixture
def passes(tmp_path: Path) -> Path:
    """A directory with a file for each pass over an operator's rows, named 0, 1, …"""
    directory = tmp_path / "passes"
    directory.mkdir()
    return directory


def no_rows(session: SparkSession, passes: Path) -> DataFrame:
    """Rows that turn out to be none when a pass over an operator's rows is under way."""
    return session.range(0, 1, 1, 1).mapInArrow(DropRowsAfter(passes / "0"), "id long")


def test_a_chain_that_is_joined_with_no_rows_is_run_once_and_whole(job: Job, passes: Path) -> None:
    def sink(rows: DataFrame, batch_id: int) -> None:
        none = no_rows(rows.sparkSession, passes).hint("merge")
        job.write(rows.join(none, "id"), batch_id)

    job.feed(files=1)
    first = job.part(AwaitsNextPass(1, passes), "first", parallelism=1)
    job.run(job.chain(first, job.part(Groups(1000), "second"), sink=sink))
    assert job.checkpoint_ids() == [1]
    assert job.ids_written() == []
    assert job.ids_held("second") == job.ids_fed
    assert [path.name for path in passes.iterdir()] == ["0"]


def test_a_pass_that_spark_leaves_running_behind_the_sinks_write_is_the_one_that_counts(
    spark: SparkSession, job: Job, passes: Path
) -> None:
    def sink(rows: DataFrame, batch_id: int) -> None:
        # The plan follows the settings of the left side, a session that isn't the query's own.
        none = no_rows(spark, passes).repartition(2, "id").hint("merge")
        job.write(none.join(rows.repartition(2, "id"), "id"), batch_id)

    job.feed(files=1)
    job.run(job.operator(AwaitsNextPass(1000, passes), sink=sink, parallelism=1))
    assert job.checkpoint_ids() == [1]
    assert job.ids_written() == []
    assert job.ids_held() == job.ids_fed
    assert [path.name for path in passes.iterdir()] == ["0"]
