"""Runs operators with state in PySpark's Structured Streaming."""

from holdfast.spark._coordinator import SparkProgress, progress_of
from holdfast.spark._functions import StatefulFunction
from holdfast.spark._setting import Setting
from holdfast.spark._settings import Settings, settings_table
from holdfast.spark._stateful import Sink, StatefulOperator, stateful
from holdfast.spark.savepoints import (
    RestoredQuery,
    restore_savepoint,
    roll_back,
    stop_with_savepoint,
    take_savepoint,
)

__all__ = [
    "RestoredQuery",
    "Setting",
    "Settings",
    "Sink",
    "SparkProgress",
    "StatefulFunction",
    "StatefulOperator",
    "progress_of",
    "restore_savepoint",
    "roll_back",
    "settings_table",
    "stateful",
    "stop_with_savepoint",
    "take_savepoint",
]
