"""How far ahead lists and maps of keys are read: some thousand elements at a time, however they are spread over keys."""

from typing import Generic, TypeVar

from holdfast.spark.processors.turns import CurrentKey, Numbers

_T = TypeVar("_T")

_ELEMENTS = 1 << 16
"""So many elements are read at a time where keys have fewer."""
_GROWTH = 8


class ReadingAhead(Generic[_T]):
    """What was read for the current key and for those that have their turn next.

    The first look-up of a phase is for a single key: it tells how much there is.

    Args:
        current: The current key.

    Attributes:
        elements_per_key: How many elements keys had when some were last read.
    """

    def __init__(self, current: CurrentKey) -> None:
        self._current = current
        self._read: dict[int, _T] = {}
        self._turns = 1
        self.elements_per_key = 0.0

    def get(self, number: int) -> _T | None:
        """What was read for a key; None if it was not."""
        return self._read.get(number)

    def next_numbers(self) -> Numbers:
        """The keys that should be read now."""
        return self._current.upcoming(self._turns)

    def put(self, read: dict[int, _T], elements: int) -> None:
        """Keep what was read, instead of what was before.

        Args:
            read: By the number of its key.
            elements: How many elements these are.
        """
        self._read = read
        self.elements_per_key = elements / len(read)
        fitting = int(_ELEMENTS / max(self.elements_per_key, 1 / 16))
        self._turns = max(1, min(self._turns * _GROWTH, fitting))

    def clear(self) -> None:
        """Forget what was read."""
        self._read = {}
        self._turns = 1
