"""Savepoints and retained checkpoints of Apache Flink jobs, read without a JVM.

    savepoint      what users see: `open` makes a `FlinkSavepoint`; kafka_offsets, operator_ids: what it tells besides
    metadata       the file `_metadata`: operators, and handles that lead to their state
    states         the states of an operator, and their rows
    serializers    from what a savepoint says of a serializer to what reads its values
    moving         a savepoint of Holdfast made of a savepoint of Flink, and the way back
    binary         bytes as Java writes them

Nothing that is read is believed: every count is compared with the bytes that are left, and no class is loaded. Flink
has no checksums, so damage inside of a value can't be seen.
"""

from holdfast.flink.moving import FlinkExport, FlinkStateImport, export_savepoint, import_savepoint
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
