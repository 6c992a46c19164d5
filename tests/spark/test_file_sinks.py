"""Files that a repeated batch replaces."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.errors import InvalidRequestError
from holdfast.spark.sinks import files


def test_files_of_a_repeated_batch_are_replaced(spark: SparkSession, tmp_path: Path) -> None:
    sink = files.replace(str(tmp_path / "output"))
    sink(spark.range(3), 0)
    sink(spark.range(5), 7)
    sink(spark.range(2), 7)
    rows = spark.read.parquet(str(tmp_path / "output")).collect()
    assert sorted((row.batch, row.id) for row in rows) == [(0, 0), (0, 1), (0, 2), (7, 0), (7, 1)]


def test_rows_with_the_column_of_the_directories_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.range(1).selectExpr("id AS BATCH")
    with pytest.raises(InvalidRequestError, match="pass another column="):
        files.replace(str(tmp_path))(rows, 0)
    files.replace(str(tmp_path), column="number", format="json")(rows, 0)
    assert [row.number for row in spark.read.json(str(tmp_path)).collect()] == [0]
