"""Managed keyed state of any backend as a part of a subtask's snapshot."""

from holdfast.backends.snapshot import AsyncSnapshot
from holdfast.locations.handles import SegmentsStateHandle
from holdfast.locations.metadata import StoredSubtask


class KeyedStatePart:
    """Tables as a part of a subtask's snapshot.

    Args:
        snapshot: The asynchronous part of the backend's snapshot.
    """

    def __init__(self, snapshot: AsyncSnapshot[SegmentsStateHandle]) -> None:
        self._snapshot = snapshot

    def run(self) -> StoredSubtask:
        return StoredSubtask(managed_keyed=self._snapshot.run().handles)

    def cancel(self) -> None:
        self._snapshot.cancel()
