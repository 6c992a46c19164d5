"""The data source `holdfast`: states of checkpoints and savepoints as DataFrames."""

from holdfast.spark.data_source.reader import StateReader
from holdfast.spark.data_source.session import read_state
from holdfast.spark.data_source.spark_types import for_spark, spark_schema_of
from holdfast.spark.data_source.view import StateView

__all__ = ["StateReader", "StateView", "for_spark", "read_state", "spark_schema_of"]
