"""Timers of the current key."""

import numpy as np

from holdfast.backends.keyed.keys import Keys
from holdfast.backends.keyed.states.key_context import KeyContext, Pages
from holdfast.backends.keyed.states.timers import FiredTimers, Timers
from holdfast.backends.keyed.table import Operation


class TimerService:
    """Timers of each key: here of the current key, in the current namespace if there are some.

    Source:
        Flink, InternalTimerService: there a service has timers of event time and of processing time, here
        each has its own.
    """

    def __init__(self, columns: Timers, context: KeyContext) -> None:
        self._columns = columns
        self._context = context
        rows = columns.rows
        self._pages: Pages[TimerPage] = Pages(
            rows.name,
            context,
            rows.table.spec.namespace,
            rows.hash_of,
            lambda keys: TimerPage(columns, keys),
        )
        self._page: TimerPage | None = None
        rows.settle = self.settle

    @property
    def name(self) -> str:
        """The state's name."""
        return self._columns.rows.name

    @property
    def columns(self) -> Timers:
        """The timers by arrays: of many keys at once."""
        return self._columns

    def register(self, time_ms: int) -> None:
        """Register a timer of the current key; once is enough.

        Raises:
            InvalidRequestError: No key is current.
        """
        page, index = self._current()
        page.changes[index, int(time_ms)] = Operation.PUT

    def delete(self, time_ms: int) -> None:
        """Delete a timer of the current key, if it is there. Raises what `register` does."""
        page, index = self._current()
        page.changes[index, int(time_ms)] = Operation.DELETE

    def fire(self, until_ms: int) -> FiredTimers:
        """The timers of all keys of this time and before, in order of time; they are gone afterwards."""
        return self._columns.fire(until_ms)

    def leave_namespace(self) -> None:
        """Another namespace is current from now on."""
        self._page = None

    def settle(self) -> None:
        """Write back what was registered and deleted."""
        self._page = None
        self._pages.store()

    def _current(self) -> tuple["TimerPage", int]:
        _, index = self._context.current()
        if self._page is None:
            self._page = self._pages.current()
        return self._page, index


class TimerPage:
    """What was registered and deleted for the keys of a batch.

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
