"""Snapshots of any kind of state: captured at once, written when somebody runs them.

A subtask's snapshot is a list of `parts`, one for each kind of state; `subtask/` runs or cancels all of them.
`async_snapshot` makes a part of what a backend says in a strategy, and opens `snapshot_streams` for it;
`operator/` has the strategy of operator state. Start with `parts`.
"""

from holdfast.backends.snapshot.async_snapshot import (
    AsyncSnapshot,
    SnapshotResult,
)
from holdfast.backends.snapshot.parts import SnapshotPart, WrittenPart, discard
from holdfast.backends.snapshot.snapshot_streams import SnapshotStreams

__all__ = [
    "AsyncSnapshot",
    "SnapshotPart",
    "SnapshotResult",
    "SnapshotStreams",
    "WrittenPart",
    "discard",
]
