"""Handles: small immutable values that lead to bytes of state, and the checksums of these bytes.

`stream_handles` lead to bytes, `state_handles` to the state of a subtask in them; `checksum` verifies a stream while it
is read. A storage makes handles, `metadata` stores them, backends read their streams. Start with `state_handles`.
"""

from holdfast.locations.handles.checksum import (
    BLOCK_BYTES,
    Checksum,
    ChecksumBuilder,
    VerifyingInputStream,
    checksum_of,
)
from holdfast.locations.handles.state_handles import (
    KeyedStateHandle,
    KeyGroupsStateHandle,
    ManagedKeyedStateHandle,
    OperatorStateHandle,
    OperatorStateMode,
    RawOperatorStateHandle,
    SegmentsStateHandle,
    StateHandle,
    StatePartitions,
    StreamChange,
)
from holdfast.locations.handles.stream_handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    PlaceholderStreamStateHandle,
    StreamStateHandle,
    is_inside,
)

__all__ = [
    "BLOCK_BYTES",
    "ByteStreamStateHandle",
    "Checksum",
    "ChecksumBuilder",
    "FileStateHandle",
    "KeyGroupsStateHandle",
    "KeyedStateHandle",
    "ManagedKeyedStateHandle",
    "OperatorStateHandle",
    "OperatorStateMode",
    "PlaceholderStreamStateHandle",
    "RawOperatorStateHandle",
    "SegmentsStateHandle",
    "StateHandle",
    "StatePartitions",
    "StreamChange",
    "StreamStateHandle",
    "VerifyingInputStream",
    "checksum_of",
    "is_inside",
]
