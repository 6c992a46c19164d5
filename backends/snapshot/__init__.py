"""What drives a snapshot of any kind of state: taken at once, written when somebody runs it.

`operator/` says what is written. Start with `snapshots`.
"""

from holdfast.backends.snapshot.duplicating_stream import DuplicatingCheckpointOutputStream
from holdfast.backends.snapshot.snapshots import (
    AsyncSnapshot,
    SnapshotResult,
    SnapshotStreams,
)

__all__ = [
    "AsyncSnapshot",
    "DuplicatingCheckpointOutputStream",
    "SnapshotResult",
    "SnapshotStreams",
]
