"""Runs operators with state in PySpark's Structured Streaming."""

from holdfast.spark._coordinator import SparkProgress, progress_of
from holdfast.spark._functions import StatefulFunction
from holdfast.spark._setting import Setting
from holdfast.spark._settings import Settings, settings_table
from holdfast.spark._stateful import Sink, StatefulOperator, stateful

__all__ = [
    "Setting",
    "Settings",
    "Sink",
    "SparkProgress",
    "StatefulFunction",
    "StatefulOperator",
    "progress_of",
    "settings_table",
    "stateful",
]
