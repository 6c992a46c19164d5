"""State that moves from Flink to Holdfast, and back.

`importing` carries out what `import_plan` has planned, with rows made by `imported_tables`; `exporting` writes the rows
of `exported_rows` by `written_streams`. `dealt_rows` brings rows to other key groups, in temporary files.
"""

from holdfast.flink.moving.dealt_rows import DealtRows, SpillFile
from holdfast.flink.moving.exporting import FlinkExport, export_savepoint
from holdfast.flink.moving.importing import FlinkStateImport, import_savepoint
from holdfast.flink.moving.written_streams import (
    WrittenFile,
    WrittenOperator,
    keyed_info,
    metadata_file,
    write_keyed_state,
)

__all__ = [
    "DealtRows",
    "FlinkExport",
    "FlinkStateImport",
    "SpillFile",
    "WrittenFile",
    "WrittenOperator",
    "export_savepoint",
    "import_savepoint",
    "keyed_info",
    "metadata_file",
    "write_keyed_state",
]
