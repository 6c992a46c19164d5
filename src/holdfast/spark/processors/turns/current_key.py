"""Which key a processor is called for, and which are next: what all of its state variables share."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.backends.keyed import Keys

Numbers = npt.NDArray[np.int64]


def inverse(order: Numbers) -> Numbers:
    """Where each number stands in an order."""
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return places


class CurrentKey:
    """The current key, as its number in the order in which keys have their turn.

    Attributes:
        handle_state: How far the batch is, in Spark's words; state of keys is there from INITIALIZED on.
        number: Number of the current key; None if none is current.
        count: How many keys have their turn in this phase.
    """

    __slots__ = ("_keys", "_order", "_turn", "_visits", "count", "handle_state", "number")

    def __init__(self, handle_state: str) -> None:
        self.handle_state = handle_state
        self.number: int | None = None
        self.count = 0
        self._keys: Keys | None = None
        self._order: Numbers = np.empty(0, np.int64)
        self._visits: Numbers | None = None
        self._turn = 0

    def begin(self, keys: Keys, order: Numbers, visits: Numbers | None = None) -> None:
        """Begin a phase, in which keys have their turn.

        Args:
            keys: The keys.
            order: For each number the index of its key in `keys`.
            visits: The numbers in the order of turns where a key can have several; None if each has one.
        """
        self._keys, self._order, self._visits = keys, order, visits
        self.count = len(order)
        self.number = None
        self._turn = 0

    def take_turn(self, turn: int) -> None:
        """Make the key of a turn the current one."""
        self._turn = turn
        self.number = turn if self._visits is None else int(self._visits[turn])

    def end(self) -> None:
        """No key is current any more."""
        self.number = None

    def upcoming(self, turns: int) -> Numbers:
        """The numbers of the keys of this turn and the next ones, each once."""
        if self._visits is None:
            return np.arange(self._turn, min(self._turn + turns, self.count))
        return np.unique(self._visits[self._turn : self._turn + turns])

    def keys_of(self, numbers: Numbers | None = None) -> tuple[Keys, Numbers]:
        """Keys as states take them, and the number of each.

        Args:
            numbers: Which keys; None for all of the phase.
        """
        assert self._keys is not None
        if numbers is None:
            return self._keys, inverse(self._order)
        indices = self._order[numbers]
        ascending = np.argsort(indices)
        return self._keys.take(indices[ascending]), numbers[ascending]

    def objects_of(self, columns: Sequence[list[Any]], number: int) -> tuple[Any, ...]:
        """The values of a key's columns."""
        index = self._order[number]
        return tuple(column[index] for column in columns)
