"""Savepoints of whole queries: Spark's own state and progress, and the state of operators.

    take/      copies what a query needs, then publishes the metadata that leads to it
    restore/   makes a checkpointLocation of a savepoint, and the first checkpoint of a new job
    rollback/  takes a stopped query back to an earlier checkpoint; previews what that would lose
    write/     writes a savepoint without a run, with other states or new operators
    notes/     what a restore and a roll back note in a checkpointLocation, so that both can be repeated

Each begins with a `QueryAddress`, by which a caller names a query, and goes on with the `StoredQuery` that it leads to
(`stored_query`). `exchanged_state` is for `moving/`. Spark's files they know by `checkpoint_location/`.
"""

from holdfast.spark.savepoints.application import application_id
from holdfast.spark.savepoints.exchanged_state import QueryToExchange
from holdfast.spark.savepoints.notes import RESTORED_FILE, is_attempt
from holdfast.spark.savepoints.restore import RestoredQuery, restore_savepoint
from holdfast.spark.savepoints.rollback import (
    RollBackPoint,
    RollBackPreview,
    preview_roll_back,
    roll_back,
    roll_back_points,
)
from holdfast.spark.savepoints.take import Copier, stop_with_savepoint, take_savepoint
from holdfast.spark.savepoints.write import NewOperator, write_savepoint

__all__ = [
    "RESTORED_FILE",
    "Copier",
    "NewOperator",
    "QueryToExchange",
    "RestoredQuery",
    "RollBackPoint",
    "RollBackPreview",
    "application_id",
    "is_attempt",
    "preview_roll_back",
    "restore_savepoint",
    "roll_back",
    "roll_back_points",
    "stop_with_savepoint",
    "take_savepoint",
    "write_savepoint",
]
