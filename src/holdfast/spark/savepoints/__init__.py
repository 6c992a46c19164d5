"""Savepoints of whole queries: Spark's own state and progress, and that of operators.

`taking`, `restoring`, `rolling_back` and `writing` have one public function each; `origin` is the query
that they work on. Spark's files they know by `checkpoint_location/`.
"""

from holdfast.spark.savepoints.attempts import is_attempt
from holdfast.spark.savepoints.base import Copier
from holdfast.spark.savepoints.done_restore import RESTORED_FILE
from holdfast.spark.savepoints.restoring import RestoredQuery, restore_savepoint
from holdfast.spark.savepoints.rolling_back import roll_back
from holdfast.spark.savepoints.taking import stop_with_savepoint, take_savepoint
from holdfast.spark.savepoints.way_back import (
    RollBackPoint,
    RollBackPreview,
    preview_roll_back,
    roll_back_points,
)
from holdfast.spark.savepoints.writing import NewOperator, write_savepoint

__all__ = [
    "RESTORED_FILE",
    "Copier",
    "NewOperator",
    "RestoredQuery",
    "RollBackPoint",
    "RollBackPreview",
    "is_attempt",
    "preview_roll_back",
    "restore_savepoint",
    "roll_back",
    "roll_back_points",
    "stop_with_savepoint",
    "take_savepoint",
    "write_savepoint",
]
