"""Runs operators with state in PySpark's Structured Streaming."""

from holdfast.spark._coordinator import SparkProgress, progress_of
from holdfast.spark._functions import BroadcastProcessFunction, StatefulFunction
from holdfast.spark._operator import Broadcast, Sink
from holdfast.spark._setting import Setting
from holdfast.spark._settings import Settings, settings_table
from holdfast.spark._sinks import CheckpointedSink
from holdfast.spark._stateful import StatefulOperator, StatefulQuery, checkpointed, stateful

__all__ = [
    "Broadcast",
    "BroadcastProcessFunction",
    "CheckpointedSink",
    "Setting",
    "Settings",
    "Sink",
    "SparkProgress",
    "StatefulFunction",
    "StatefulOperator",
    "StatefulQuery",
    "checkpointed",
    "progress_of",
    "settings_table",
    "stateful",
]
