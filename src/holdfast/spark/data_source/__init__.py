"""The data source `holdfast`: states of checkpoints and savepoints as DataFrames.

Spark finds it in the package `pyspark_holdfast`. `view` is what its options ask for, `reader` reads that in
tasks, `spark_types` casts it. `session` has `scan_state`, for users. Start with `view`.
"""

from holdfast.spark.data_source.reader import StateReader
from holdfast.spark.data_source.session import scan_state
from holdfast.spark.data_source.spark_types import for_spark, spark_schema_of
from holdfast.spark.data_source.view import StateView

__all__ = ["StateReader", "StateView", "for_spark", "scan_state", "spark_schema_of"]
