"""Timers of the current key."""

from functools import partial

import numpy as np

from holdfast.backends.keyed.keys import Keys
from holdfast.backends.keyed.states.key_context import KeyContext
from holdfast.backends.keyed.states.of_current_key import OfCurrentKey
from holdfast.backends.keyed.states.timers import FiredTimers, Timers
from holdfast.backends.keyed.table import Operation
from holdfast.backends.keyed.times import whole_ms


class TimerService(OfCurrentKey["TimerPage", Timers]):
    """Timers of each key, registered and deleted for the current key, in the current namespace if there are namespaces.

    Source:
        Flink, InternalTimerService: there a service has timers of event time and of processing time, here
        each has its own.
    """

    def __init__(self, columns: Timers, context: KeyContext) -> None:
        super().__init__(columns, context, partial(TimerPage, columns))

    def register(self, time_ms: int) -> None:
        """Register a timer of the current key; once is enough.

        Raises:
            InvalidRequestError: No key is current, or the time is no whole number of milliseconds.
        """
        page, index = self._current()
        page.changes[index, whole_ms(time_ms)] = Operation.PUT

    def delete(self, time_ms: int) -> None:
        """Delete a timer of the current key, if it is there. Raises what `register` does."""
        page, index = self._current()
        page.changes[index, whole_ms(time_ms)] = Operation.DELETE

    def fire(self, until_ms: int) -> FiredTimers:
        """The timers of all keys up to this time, in order of time; they are gone afterwards. Raises what `due` does."""
        return self._columns.fire(until_ms)

    def due(self, until_ms: int) -> FiredTimers:
        """The timers of all keys up to this time, in order of time; they stay until they are deleted.

        Raises:
            InvalidRequestError: The time is no whole number of milliseconds.
        """
        return self._columns.due(until_ms)

    def earliest(self) -> int | None:
        """The time of the earliest timer of all keys that is left; None if none is."""
        return self._columns.earliest()


class TimerPage:
    """The timers that were registered and deleted for the keys of a batch.

    Attributes:
        changes: The last that was said of a timer, by the key's index and the time.
    """

    __slots__ = ("_columns", "_keys", "changes")

    def __init__(self, columns: Timers, keys: Keys) -> None:
        self._columns = columns
        self._keys = keys
        self.changes: dict[tuple[int, int], Operation] = {}

    def store(self) -> None:
        for operation in (Operation.PUT, Operation.DELETE):
            chosen = [timer for timer, known in self.changes.items() if known is operation]
            if chosen:
                pairs = np.array(chosen, np.int64)
                self._columns.store(self._keys, pairs[:, 0], pairs[:, 1], operation)
