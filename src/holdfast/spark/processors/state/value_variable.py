"""A value of the current key: looked up for all keys of the batch at once, and written back at once."""

from typing import Any

import numpy as np
from pyspark.sql.streaming.stateful_processor import ValueState as SparkValueState

from holdfast.backends.keyed import ValueState
from holdfast.spark.processors.state.state_variable import StateVariable
from holdfast.spark.processors.turns import CurrentKey
from holdfast.spark.processors.values import Structs

_UNREAD: Any = object()


class ValueVariable(StateVariable, SparkValueState):
    """Spark's `ValueState` over a state of ours.

    Args:
        name: The variable's name.
        shape: What its values are.
        current: The current key.
        state: Where the values lie; None on the driver, where nothing is read.
    """

    def __init__(
        self, name: str, shape: Structs, current: CurrentKey, state: ValueState | None
    ) -> None:
        super().__init__(name, "Value", current)
        self._shape = shape
        self._state = state
        self._values: list[Any] | None = None
        self._changed = bytearray()

    def exists(self) -> bool:
        return self._read("checking value state exists", "exists") is not None

    def get(self) -> tuple[Any, ...] | None:
        try:
            value = self._values[self._current.number]  # type: ignore[index]
        except TypeError:
            value = _UNREAD
        if value is _UNREAD:
            value = self._read("getting value state", "get")
        if value is None or self._shape.is_immutable:
            return value  # type: ignore[no-any-return]
        return self._shape.copied_values(value)

    def update(self, newValue: Any) -> None:  # Spark's name
        doing = "updating value state"
        self._write(self._row(self._shape, newValue, doing), doing, "update")

    def clear(self) -> None:
        self._write(None, "clearing value state", "clear")

    def begin(self) -> None:
        """Another phase has begun: what was read is of other keys."""
        self._values = None

    def store(self) -> None:
        """Write back what has changed."""
        values, state = self._values, self._state
        self._values = None
        if values is None or state is None:
            return
        changed = np.frombuffer(self._changed, np.uint8).nonzero()[0]
        if not len(changed):
            return
        keys, numbers = self._current.keys_of(changed)
        changed_values = self._shape.array([values[at] for at in numbers.tolist()])
        state.columns.rows.put_or_delete(keys, changed_values)

    def _read(self, doing: str, operation: str) -> Any:
        number = self._number(doing, operation)
        values = self._page()
        if values[number] is _UNREAD:
            self._load(values)
        return values[number]

    def _write(self, value: Any, doing: str, operation: str) -> None:
        number = self._current.number
        if self._values is None or number is None:
            number = self._number(doing, operation)
            self._page()
        self._values[number] = value  # type: ignore[index]
        self._changed[number] = 1

    def _page(self) -> list[Any]:
        if self._values is None:
            self._values = [_UNREAD] * self._current.count
            self._changed = bytearray(self._current.count)
        return self._values

    def _load(self, values: list[Any]) -> None:
        """Look up the values of all keys that were not written meanwhile."""
        assert self._state is not None
        keys, numbers = self._current.keys_of()
        column = self._state.columns.stored(keys)
        missing = column.is_null().to_numpy(zero_copy_only=False)
        stored = self._tuples(self._shape, column)
        for number, value, is_missing in zip(
            numbers.tolist(), stored, missing.tolist(), strict=True
        ):
            if values[number] is _UNREAD:
                values[number] = None if is_missing else value
