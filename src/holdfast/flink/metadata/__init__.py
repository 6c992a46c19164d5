"""The `_metadata` file of a savepoint or checkpoint: its operators, and the handles of their state.

`metadata_format` reads the file, `handles` the handles in it, and `files` opens the files of handles,
also if they were moved. Start with `metadata_format`.
"""

from holdfast.flink.metadata.files import StateFiles, StateStream
from holdfast.flink.metadata.handles import (
    MODES,
    ChangelogHandle,
    IncrementalHandle,
    KeyedHandle,
    KeyGroupsHandle,
    OperatorHandle,
    StreamHandle,
)
from holdfast.flink.metadata.metadata_format import (
    FlinkMetadata,
    FlinkOperator,
    operator_id,
    parse_metadata,
)

__all__ = [
    "MODES",
    "ChangelogHandle",
    "FlinkMetadata",
    "FlinkOperator",
    "IncrementalHandle",
    "KeyGroupsHandle",
    "KeyedHandle",
    "OperatorHandle",
    "StateFiles",
    "StateStream",
    "StreamHandle",
    "operator_id",
    "parse_metadata",
]
