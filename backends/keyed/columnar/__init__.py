"""Tables in sorted columns: immutable segments that are mapped, and merged little by little.

    columnar_tables   all tables of a subtask: restore, snapshot, confirmed checkpoints
    columnar_table    a table: what was written lately, over runs of segments
    lookup, needles   many identities looked up in one step
    compaction        what a snapshot makes of a table, by a policy
    segment_store     where segments are: mapped files, fetched when needed
    workspace         what a worker keeps from one batch to the next

Start with `columnar_tables`.
"""

from holdfast.backends.keyed.columnar.columnar_tables import ColumnarStateTables
from holdfast.backends.keyed.columnar.policy import MergePolicy
from holdfast.backends.keyed.columnar.workspace import Workspace

__all__ = ["ColumnarStateTables", "MergePolicy", "Workspace"]
