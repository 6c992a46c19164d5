"""What tests ask a Spark of, and PySpark has no public way to."""

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession


def jvm_of(spark: SparkSession) -> int:
    """Process id of the session's JVM."""
    gateway = spark.sparkContext._gateway  # noqa: SLF001
    assert gateway is not None
    return int(gateway.proc.pid)


def classes_of(spark: SparkSession) -> Any:
    """Java's packages, as py4j shows them."""
    assert spark._jvm is not None  # noqa: SLF001
    return spark._jvm  # noqa: SLF001


def plan_of(rows: DataFrame) -> str:
    """How rows are computed."""
    return str(rows._jdf.queryExecution().executedPlan().toString())  # noqa: SLF001


def count_of_kept_rows(spark: SparkSession) -> int:
    """Number of data sets in Spark's cache."""
    return int(spark.sparkContext._jsc.getPersistentRDDs().size())  # noqa: SLF001


def temporary_directory_of(spark: SparkSession) -> Path:
    """Where the driver keeps files that it sends to executors."""
    return Path(str(spark.sparkContext._temp_dir))  # noqa: SLF001
