"""The data source `holdfast`: states of checkpoints and savepoints as DataFrames.

Spark finds it in the package `pyspark_holdfast`. `state_view` reads states, `spark_types` casts them to Spark's types.
"""

from holdfast.spark.data_source.spark_types import for_spark, spark_schema_of
from holdfast.spark.data_source.state_view import StateReader, StateView, read_state

__all__ = ["StateReader", "StateView", "for_spark", "read_state", "spark_schema_of"]
