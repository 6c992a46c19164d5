"""Conversion of state from Flink to Holdfast, and back.

`importing` executes an `import_plan` with rows from `imported_tables`; `exporting` writes the rows of `exported_rows`
through `written_streams`. `spilled_rows` routes rows to other key groups, in temporary files.
"""

from holdfast.flink.moving.exporting import FlinkExport, export_savepoint
from holdfast.flink.moving.importing import FlinkStateImport, import_savepoint
from holdfast.flink.moving.spilled_rows import SpilledRows, SpillFile
from holdfast.flink.moving.written_streams import (
    WrittenFile,
    WrittenOperator,
    keyed_info,
    metadata_file,
    write_keyed_state,
)

__all__ = [
    "FlinkExport",
    "FlinkStateImport",
    "SpillFile",
    "SpilledRows",
    "WrittenFile",
    "WrittenOperator",
    "export_savepoint",
    "import_savepoint",
    "keyed_info",
    "metadata_file",
    "write_keyed_state",
]
