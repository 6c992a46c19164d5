"""The file `_metadata`, which makes a directory a checkpoint: its content, and its bytes.

`records` are the values, `format` makes bytes of them and reads every version, `relative_uris` names files near by.
Storages write and read it, coordination decides what becomes of it. Start with `records`.
"""

from holdfast.locations.metadata.format import decode_metadata, encode_metadata
from holdfast.locations.metadata.records import (
    CheckpointMetadata,
    ClaimedCheckpoint,
    StoredOperator,
    StoredSubtask,
    SubtaskStatistics,
    new_commit_token,
)
from holdfast.locations.metadata.relative_uris import absolute_uri, relative_uri

__all__ = [
    "CheckpointMetadata",
    "ClaimedCheckpoint",
    "StoredOperator",
    "StoredSubtask",
    "SubtaskStatistics",
    "absolute_uri",
    "decode_metadata",
    "encode_metadata",
    "new_commit_token",
    "relative_uri",
]
