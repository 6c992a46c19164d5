"""The parts that a subtask's snapshot is made of: one for each kind of state.

A part captures its state while no data is processed. It is then run or cancelled, together with all other parts:

    run, of each part in turn    writes the part's share of the subtask's state
    cancel, of each part         leaves nothing behind, unless `run` has returned

If the `run` of a part fails, the other parts are cancelled, and the shares of those that ran before are
discarded: a subtask has all of its snapshot, or nothing.
"""

import threading
from concurrent.futures import CancelledError
from typing import Protocol

from holdfast.common import collect_failures
from holdfast.locations.metadata import StoredSubtask


class SnapshotPart(Protocol):
    """State of one kind, on its way into a snapshot."""

    def run(self) -> StoredSubtask:
        """Write the captured state, once, in any thread; if that fails, nothing is left behind.

        Returns:
            The state as it is stored, which belongs to the caller.

        Raises:
            CancelledError: `cancel` came before or meanwhile.
            StorageUnavailableError: The store did not take it.
        """
        ...

    def cancel(self) -> None:
        """Give the part up, in any thread. Does nothing once `run` has returned or failed. Never raises."""
        ...


class WrittenPart:
    """State that is in its files already when the snapshot is taken, and only has to be handed over.

    Args:
        state: The state that was written.
    """

    def __init__(self, state: StoredSubtask) -> None:
        self._state: StoredSubtask | None = state
        self._lock = threading.Lock()

    def run(self) -> StoredSubtask:
        state = self._take()
        if state is None:
            raise CancelledError
        return state

    def cancel(self) -> None:
        state = self._take()
        if state is not None:
            discard(state)

    def _take(self) -> StoredSubtask | None:
        """The state, for the first caller only: `run` returns it, `cancel` discards it."""
        with self._lock:
            state, self._state = self._state, None
        return state


def discard(state: StoredSubtask) -> None:
    """Delete the bytes of state that nobody will store, as far as possible. Never raises."""
    collect_failures(lambda handle: handle.discard_state(), state.handles())
