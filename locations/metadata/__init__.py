"""The file `_metadata`, whose existence makes a directory a checkpoint: its records and its bytes.

`records` are the values; `format` encodes them and decodes every version. Storages write and read the file. Start with
`records`.
"""

from holdfast.locations.metadata.format import (
    absolute_uri,
    decode_metadata,
    encode_metadata,
    relative_uri,
)
from holdfast.locations.metadata.records import (
    CheckpointMetadata,
    ClaimedCheckpoint,
    StoredOperator,
    StoredSubtask,
    SubtaskStatistics,
    new_commit_token,
)

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
