"""Settings of a session for the duration of a block, and internals of Spark that PySpark has no public access to."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from holdfast.backends.keyed import BackendName

STATE_BACKEND = cast("BackendName", os.environ.get("HOLDFAST_TESTS_BACKEND", "columnar"))
"""The default backend of keyed state in tests: `make test-keyed BACKEND=rocksdb`."""

ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}
"""Settings that Spark's own `transformWithState` needs."""


@contextmanager
def session_with(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Give the session these settings for the block; a query that is started in it keeps its copy of them.

    It is the active session then, which another test may have changed.
    """
    spark.createDataFrame([], StructType())  # makes it the active one
    before = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, earlier in before.items():
            if earlier is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, earlier)


def jvm_of(spark: SparkSession) -> int:
    """Return the process id of the session's JVM."""
    gateway = spark.sparkContext._gateway  # noqa: SLF001
    assert gateway is not None
    return int(gateway.proc.pid)


def jvm_classes(spark: SparkSession) -> Any:
    """Return the packages of Java, as py4j shows them."""
    assert spark._jvm is not None  # noqa: SLF001
    return spark._jvm  # noqa: SLF001


def plan_of(rows: DataFrame) -> str:
    """Return the physical plan of rows."""
    return str(rows._jdf.queryExecution().executedPlan().toString())  # noqa: SLF001


def cached_dataset_count(spark: SparkSession) -> int:
    """Return the number of data sets in Spark's cache."""
    return int(spark.sparkContext._jsc.getPersistentRDDs().size())  # noqa: SLF001


def temporary_directory_of(spark: SparkSession) -> Path:
    """Return the directory of files that the driver sends to executors."""
    return Path(str(spark.sparkContext._temp_dir))  # noqa: SLF001
