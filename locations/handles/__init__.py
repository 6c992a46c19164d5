"""Handles: small immutable values that lead to bytes of state, and the checksums that guard them.

`stream_handles` lead to bytes, `operator_handles` and `keyed_handles` to state in them; `state_handle` says
what the latter have in common, `checksum` verifies while a stream is read. A storage makes handles,
`metadata` stores them, backends read the bytes behind them. Start with `state_handle`.
"""

from holdfast.locations.handles.checksum import (
    BLOCK_BYTES,
    Checksum,
    ChecksumBuilder,
    VerifyingInputStream,
    checksum_of,
)
from holdfast.locations.handles.keyed_handles import (
    KeyGroupsStateHandle,
    ManagedKeyedStateHandle,
    SegmentsStateHandle,
)
from holdfast.locations.handles.operator_handles import (
    OperatorStateHandle,
    OperatorStateMode,
    RawOperatorStateHandle,
    StatePartitions,
)
from holdfast.locations.handles.state_handle import KeyedStateHandle, StateHandle, StreamChange
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
