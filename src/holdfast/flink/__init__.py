"""Savepoints and retained checkpoints of Apache Flink jobs, read without a JVM.

    savepoint      the public part: `open_savepoint` returns a `FlinkSavepoint`; also kafka_offsets
    metadata       the `_metadata` file: operators, and `handles` of their state, whose `state_files` are opened
    states         the states of an operator, and their rows
    serializers    snapshots of serializers, and readers of their values
    binary         bytes as Java writes them
    importing      Flink savepoints to Holdfast savepoints: an `import_plan`, with rows from `imported_tables`
    exporting      and back: `exported_rows`, through `written_streams`; both route rows with `spilled_rows`

Input is not trusted: every count is compared with the remaining bytes, and no class is loaded. Flink stores no
checksums, so corruption inside a value can't be detected.
"""

from holdfast.flink.exporting import FlinkExport, export_savepoint
from holdfast.flink.importing import FlinkStateImport, import_savepoint
from holdfast.flink.metadata import operator_id
from holdfast.flink.savepoint import FlinkSavepoint, open_savepoint

__all__ = [
    "FlinkExport",
    "FlinkSavepoint",
    "FlinkStateImport",
    "export_savepoint",
    "import_savepoint",
    "open_savepoint",
    "operator_id",
]
