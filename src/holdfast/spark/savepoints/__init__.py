"""Savepoints of whole queries: Spark's own state and progress, and the state of operators.

    take           copies the files that a query needs, then publishes the metadata that leads to them
    restore        makes a checkpointLocation of a savepoint, and the first checkpoint of a new job
    rollback       rolls a stopped query back to an earlier checkpoint; previews what that would delete
    write          writes a savepoint without a run, with other states or new operators
    state_rewrite  writes a savepoint with operators in place of Spark's state, for `state_import`

Each begins with a `QueryAddress`, the arguments that name a query, and the `StoredQuery` that it leads to
(`stored_query`). `change_notes` makes restores and rollbacks repeatable. `checkpoint_location/` knows Spark's files.
"""

from holdfast.spark.savepoints.change_notes import RESTORED_FILE, is_attempt
from holdfast.spark.savepoints.copier import Copier
from holdfast.spark.savepoints.restore import RestoredQuery, plan_restore, restore_savepoint
from holdfast.spark.savepoints.rollback import (
    RollbackPoint,
    RollbackPreview,
    preview_rollback,
    roll_back,
    rollback_points,
)
from holdfast.spark.savepoints.state_rewrite import StateRewrite
from holdfast.spark.savepoints.stored_query import QueryAddress, application_id
from holdfast.spark.savepoints.take import SavepointRequest, stop_with_savepoint, take_savepoint
from holdfast.spark.savepoints.write import NewOperator, write_savepoint

__all__ = [
    "RESTORED_FILE",
    "Copier",
    "NewOperator",
    "QueryAddress",
    "RestoredQuery",
    "RollbackPoint",
    "RollbackPreview",
    "SavepointRequest",
    "StateRewrite",
    "application_id",
    "is_attempt",
    "plan_restore",
    "preview_rollback",
    "restore_savepoint",
    "roll_back",
    "rollback_points",
    "stop_with_savepoint",
    "take_savepoint",
    "write_savepoint",
]
