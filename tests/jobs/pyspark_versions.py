"""Versions of PySpark in tests: names that differ, and tests that need a later version."""

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

VERSION = tuple(map(int, pyspark.__version__.split(".")[:2]))

FILE_MANAGER = (
    "org.apache.spark.sql.execution.streaming"
    f"{'.checkpointing' if VERSION >= (4, 1) else ''}.FileSystemBasedCheckpointFileManager"
)
"""Spark's class for files of a checkpointLocation on any Hadoop file system."""


def requires_pyspark(version: str, feature: str) -> pytest.MarkDecorator:
    """Skip a test on versions before this one, such as "4.1", because they lack a feature."""
    return pytest.mark.skipif(
        tuple(map(int, version.split("."))) > VERSION,
        reason=f"PySpark {pyspark.__version__} has no {feature}; PySpark {version} has",
    )


def frame_of(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return a frame with the rows of a table, as `createDataFrame` of PySpark 4 does."""
    schema = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
    return spark.range(0, 1, 1, 1).mapInArrow(lambda _: table.to_batches(), schema)
