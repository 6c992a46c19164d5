"""Savepoints of whole queries: Spark's own state and progress, and that of operators."""

from holdfast.spark.savepoints._restore import RestoredQuery, restore_savepoint
from holdfast.spark.savepoints._roll_back import roll_back
from holdfast.spark.savepoints._take import stop_with_savepoint, take_savepoint
from holdfast.spark.savepoints._way_back import (
    RollBackPoint,
    RollBackPreview,
    preview_roll_back,
    roll_back_points,
)
from holdfast.spark.savepoints._write import NewOperator, write_savepoint

__all__ = [
    "NewOperator",
    "RestoredQuery",
    "RollBackPoint",
    "RollBackPreview",
    "preview_roll_back",
    "restore_savepoint",
    "roll_back",
    "roll_back_points",
    "stop_with_savepoint",
    "take_savepoint",
    "write_savepoint",
]
