"""Handles: small immutable values that lead to bytes of state, and the checksums that guard them.

`handles` has the kinds of handles; `checksum` verifies while a stream is read. A storage makes handles,
`metadata` stores them, backends read the bytes behind them. Start with `handles`.
"""

from holdfast.locations.handles.checksum import (
    BLOCK_BYTES,
    Checksum,
    ChecksumBuilder,
    VerifyingInputStream,
    checksum_of,
)
from holdfast.locations.handles.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    KeyGroupsStateHandle,
    OperatorStateHandle,
    OperatorStateMode,
    RawOperatorStateHandle,
    StatePartitions,
    StreamStateHandle,
    flaw_in,
    is_inside,
)

__all__ = [
    "BLOCK_BYTES",
    "ByteStreamStateHandle",
    "Checksum",
    "ChecksumBuilder",
    "FileStateHandle",
    "KeyGroupsStateHandle",
    "OperatorStateHandle",
    "OperatorStateMode",
    "RawOperatorStateHandle",
    "StatePartitions",
    "StreamStateHandle",
    "VerifyingInputStream",
    "checksum_of",
    "flaw_in",
    "is_inside",
]
