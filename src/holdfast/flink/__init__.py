"""Savepoints and retained checkpoints of Apache Flink jobs, read without a JVM.

`savepoint` is what users see: `open` makes a `FlinkSavepoint`. It reads `metadata` (operators and handles), then
`stored_states` the states of an operator: `operator_state`, `keyed_state` in the `canonical` form or that of the `heap`
backend, `raw_timers`. `descriptions` says which states a stream has, and `serializers` reads their values. `importing` makes a savepoint of
Holdfast of what is read, and `exporting` one of Flink of ours; `dealt_rows` brings rows to other key groups between.

Nothing that is read is believed: every count is compared with the bytes that are left, and no class is loaded. Flink
has no checksums, so damage inside of a value can't be seen.
"""

from holdfast.flink.exporting import FlinkExport, export_savepoint
from holdfast.flink.importing import FlinkStateImport, import_savepoint
from holdfast.flink.operator_ids import operator_id
from holdfast.flink.savepoint import FlinkSavepoint, open  # noqa: A004  # users call flink.open

__all__ = [
    "FlinkExport",
    "FlinkSavepoint",
    "FlinkStateImport",
    "export_savepoint",
    "import_savepoint",
    "open",
    "operator_id",
]
