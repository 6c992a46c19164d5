"""Runs operators with state in PySpark's Structured Streaming; savepoints, and settings of queries."""

import holdfast.spark.pyspark_version  # noqa: F401  # first, so that it says why nothing else works
from holdfast.backends.keys import subtask_of_key
from holdfast.spark.by_key import keyed
from holdfast.spark.data_source import read_state
from holdfast.spark.moving import SparkInitialState, import_spark_state, spark_initial_state
from holdfast.spark.operators import (
    Broadcast,
    BroadcastProcessFunction,
    CheckpointedSink,
    KeyedProcessFunction,
    Sink,
    StatefulFunction,
)
from holdfast.spark.query import StatefulOperator, StatefulQuery, stateful, stateful_query
from holdfast.spark.savepoints import (
    NewOperator,
    RestoredQuery,
    RollbackPoint,
    RollbackPreview,
    application_id,
    preview_rollback,
    restore_savepoint,
    roll_back,
    rollback_points,
    stop_with_savepoint,
    take_savepoint,
    write_savepoint,
)
from holdfast.spark.settings import Setting, Settings, configure, settings_table
from holdfast.spark_progress import SparkProgress, copy_savepoint, progress_of, verify_checkpoints

__all__ = [
    "Broadcast",
    "BroadcastProcessFunction",
    "CheckpointedSink",
    "KeyedProcessFunction",
    "NewOperator",
    "RestoredQuery",
    "RollbackPoint",
    "RollbackPreview",
    "Setting",
    "Settings",
    "Sink",
    "SparkInitialState",
    "SparkProgress",
    "StatefulFunction",
    "StatefulOperator",
    "StatefulQuery",
    "application_id",
    "configure",
    "copy_savepoint",
    "import_spark_state",
    "keyed",
    "preview_rollback",
    "progress_of",
    "read_state",
    "restore_savepoint",
    "roll_back",
    "rollback_points",
    "settings_table",
    "spark_initial_state",
    "stateful",
    "stateful_query",
    "stop_with_savepoint",
    "subtask_of_key",
    "take_savepoint",
    "verify_checkpoints",
    "write_savepoint",
]
