"""Savepoints of whole queries: Spark's own state and progress, and the state of operators.

`taking`, `restoring`, `rolling_back`, `previewing` and `writing` have the public functions; `exchanged_state` is for
`moving/`. They look a query
up by its `QueryAddress`, and go on with the `StoredQuery` that it leads to (`stored_query`). A savepoint is
made by `query_copy`; `unfinished`, `attempts` and `done_restore` are the notes that a restore and a roll back
leave in a checkpointLocation. Spark's files they know by `checkpoint_location/`.
"""

from holdfast.spark.savepoints.attempts import is_attempt
from holdfast.spark.savepoints.base import Copier
from holdfast.spark.savepoints.done_restore import RESTORED_FILE
from holdfast.spark.savepoints.exchanged_state import QueryToExchange
from holdfast.spark.savepoints.new_operator import NewOperator
from holdfast.spark.savepoints.previewing import (
    RollBackPoint,
    RollBackPreview,
    preview_roll_back,
    roll_back_points,
)
from holdfast.spark.savepoints.restoring import RestoredQuery, restore_savepoint
from holdfast.spark.savepoints.rolling_back import roll_back
from holdfast.spark.savepoints.taking import stop_with_savepoint, take_savepoint
from holdfast.spark.savepoints.writing import write_savepoint

__all__ = [
    "RESTORED_FILE",
    "Copier",
    "NewOperator",
    "QueryToExchange",
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
