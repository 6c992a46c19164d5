"""A list of the current key: read some keys ahead, written back at once; what is only appended is not read."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from pyspark.sql.streaming.stateful_processor import ListState as SparkListState

from holdfast.backends.arrow import offsets_of
from holdfast.backends.keyed import KeyedListState, Operation
from holdfast.spark.processors import errors
from holdfast.spark.processors.state.reading_ahead import ReadingAhead
from holdfast.spark.processors.state.state_variable import StateVariable
from holdfast.spark.processors.turns import CurrentKey
from holdfast.spark.processors.values import Structs

_Elements = list[tuple[Any, ...]]

_WRITING = "updating value state"  # Spark's words, for lists, too


class ListVariable(StateVariable, SparkListState):
    """Spark's `ListState` over a state of ours.

    Args:
        name: The variable's name.
        shape: What its elements are.
        current: The current key.
        state: Where the lists lie; None on the driver, where nothing is read.
    """

    def __init__(
        self, name: str, shape: Structs, current: CurrentKey, state: KeyedListState | None
    ) -> None:
        super().__init__(name, "List", current)
        self._shape = shape
        self._state = state
        self._stored: ReadingAhead[_Elements] = ReadingAhead(current)
        self._replaced: dict[int, _Elements] = {}
        self._appended: dict[int, _Elements] = {}

    def exists(self) -> bool:
        return bool(self._elements("checking value state exists", "exists"))

    def get(self) -> Iterator[tuple[Any, ...]]:
        # A generator: it looks at the state when it is asked for the first element, and has those of then.
        elements = tuple(self._elements("getting list state", "get"))
        if self._shape.is_immutable:
            yield from elements
        else:
            yield from map(self._shape.copied_values, elements)

    def put(self, newState: Iterable[Any]) -> None:  # Spark's name
        elements = self._rows(newState)
        number = self._number(_WRITING, "put")
        self._replaced[number] = elements
        self._appended.pop(number, None)

    def appendValue(self, newState: Any) -> None:  # Spark's names
        row = self._row(self._shape, newState, _WRITING)
        self._append(self._number(_WRITING, "appendValue"), [row])

    def appendList(self, newState: Iterable[Any]) -> None:  # Spark's names
        elements = self._rows(newState)
        self._append(self._number(_WRITING, "appendList"), elements)

    def clear(self) -> None:
        number = self._number("clearing value state", "clear")
        self._replaced[number] = []
        self._appended.pop(number, None)

    def begin(self) -> None:
        """Another phase has begun: what was read is of other keys."""
        self._stored.clear()

    def store(self) -> None:
        """Write back what has changed."""
        self._stored.clear()
        replaced, self._replaced = self._replaced, {}
        appended, self._appended = self._appended, {}
        if self._state is None or not (replaced or appended):
            return
        changed = np.fromiter(sorted(replaced.keys() | appended.keys()), np.int64)
        keys, numbers = self._current.keys_of(changed)
        operations = np.full(len(numbers), Operation.PUT, np.uint8)
        lists = []
        for at, number in enumerate(numbers.tolist()):
            elements = replaced.get(number)
            if elements is None:
                operations[at] = Operation.APPEND
                elements = appended[number]
            lists.append(elements)
        offsets = np.concatenate([[0], np.cumsum([len(each) for each in lists], dtype=np.int64)])
        elements = self._shape.array([row for each in lists for row in each])
        self._state.columns.store(keys, offsets, elements, operations)

    def _append(self, number: int, elements: _Elements) -> None:
        replaced = self._replaced.get(number)
        if replaced is not None:
            replaced.extend(elements)
        else:
            self._appended.setdefault(number, []).extend(elements)

    def _elements(self, doing: str, operation: str) -> _Elements:
        """The elements of the current key."""
        number = self._number(doing, operation)
        replaced = self._replaced.get(number)
        if replaced is not None:
            return replaced
        stored = self._stored.get(number)
        if stored is None:
            self._load()
            stored = self._stored.get(number)
            assert stored is not None
        appended = self._appended.get(number)
        return stored + appended if appended else stored

    def _rows(self, given: Iterable[Any]) -> _Elements:
        elements = [self._row(self._shape, value, _WRITING) for value in given]
        if not elements:
            raise errors.empty_list(_WRITING, self._name)
        return elements

    def _load(self) -> None:
        assert self._state is not None
        keys, numbers = self._current.keys_of(self._stored.next_numbers())
        lists = self._state.columns.stored(keys)
        elements = self._tuples(self._shape, lists.flatten())
        parts = (elements[first:end] for first, end in pairwise(offsets_of(lists).tolist()))
        self._stored.put(dict(zip(numbers.tolist(), parts, strict=True)), len(elements))
