"""Managed keyed state as part of a subtask's snapshot, whichever backend of tables it is of."""

from holdfast.backends.snapshot import AsyncSnapshot
from holdfast.locations.handles import SegmentsStateHandle
from holdfast.locations.metadata import StoredSubtask


class KeyedStatePart:
    """Tables as part of a subtask's snapshot.

    Args:
        snapshot: The asynchronous part of the backend's snapshot.
    """

    def __init__(self, snapshot: AsyncSnapshot[SegmentsStateHandle]) -> None:
        self._snapshot = snapshot

    def run(self) -> StoredSubtask:
        return StoredSubtask(managed_keyed=self._snapshot.run().handles)

    def cancel(self) -> None:
        self._snapshot.cancel()
