"""Python workers that are forked from a process that has imported what tasks need."""

import gc
import sys

from pyspark.sql import SparkSession


def imported(_: object) -> tuple[int, bool]:
    """How many objects are left out of looks for garbage, and whether Holdfast is there unasked."""
    return gc.get_freeze_count(), "holdfast.spark.subtask" in sys.modules


def test_workers_begin_with_what_tasks_import(spark: SparkSession) -> None:
    frozen, is_there = spark.sparkContext.parallelize([0], 1).map(imported).first()
    assert frozen > 100_000
    assert is_there
