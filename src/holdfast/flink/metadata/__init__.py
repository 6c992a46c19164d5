"""The `_metadata` file of a savepoint or checkpoint: its operators, and the handles that lead to their state.

`metadata_format` reads the file, `handles` the handles in it, and `files` opens the files that the handles lead to,
also where they have been moved. Start with `metadata_format`.
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
from holdfast.flink.metadata.metadata_format import FlinkMetadata, FlinkOperator, parse_metadata

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
    "parse_metadata",
]
