"""The data source `holdfast`: states of checkpoints and savepoints as DataFrames."""

from holdfast.spark.data_source._reader import StateReader
from holdfast.spark.data_source._session import read_state
from holdfast.spark.data_source._view import StateView

__all__ = ["StateReader", "StateView", "read_state"]
