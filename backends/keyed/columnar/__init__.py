"""Tables in sorted columns: immutable segments, mapped, and merged step by step.

    columnar_tables  all tables of a subtask: restore, snapshot, confirmed checkpoints
    columnar_table   one table: recent writes over runs of segments
    lookup           the rows of many identities, found in one pass over the runs
    compaction       the runs that a snapshot writes and merges, by a `policy`
    chunked_merging  merges of many rows, in reused memory
    segment_store    open segments: mapped files, fetched on demand; the workspace that a worker keeps

A table and the parts of it down to bytes are drawn in `segments`. Start with `columnar_tables`.
"""

from holdfast.backends.keyed.columnar.columnar_tables import ColumnarStateTables
from holdfast.backends.keyed.columnar.policy import MergePolicy
from holdfast.backends.keyed.columnar.segment_store import Workspace

__all__ = ["ColumnarStateTables", "MergePolicy", "Workspace"]
