"""What a checkpoint is on disk: the content of `_metadata`, and its bytes.

Storages write and read it, coordination decides what becomes of it. Start with `metadata`.
"""

from holdfast.locations.metadata.metadata import (
    CheckpointMetadata,
    OperatorState,
    SubtaskState,
    SubtaskStatistics,
    absolute_uri,
    decode_metadata,
    encode_metadata,
    new_commit_token,
    relative_uri,
    with_streams,
)

__all__ = [
    "CheckpointMetadata",
    "OperatorState",
    "SubtaskState",
    "SubtaskStatistics",
    "absolute_uri",
    "decode_metadata",
    "encode_metadata",
    "new_commit_token",
    "relative_uri",
    "with_streams",
]
