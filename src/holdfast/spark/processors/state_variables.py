"""State variables and timers of a processor: Spark's classes over our states of the current key.

Values are converted when they are given (`Structs.values`), so state that was written in this batch looks like state of
an earlier one. Errors are Spark's.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import index
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import ListState as SparkListState
from pyspark.sql.streaming.stateful_processor import MapState as SparkMapState
from pyspark.sql.streaming.stateful_processor import ValueState as SparkValueState

from holdfast.backends.keyed import KeyCursor, KeyedListState, MapState, TimerService, ValueState
from holdfast.common import MAX_INT64
from holdfast.errors import InvalidRequestError
from holdfast.spark.processors import errors
from holdfast.spark.processors.scalar_types import InvalidValueError
from holdfast.spark.processors.value_types import Structs

_Values = tuple[Any, ...]


@dataclass(slots=True)
class Progress:
    """The progress of a processor within a batch.

    Attributes:
        cursor: The current key.
        handle_state: Spark's name of the phase; state of keys can be used from INITIALIZED on.
    """

    cursor: KeyCursor
    handle_state: str


class StateVariable:
    """A state variable of a processor, for the current key.

    Args:
        name: The variable's name.
        kind: Value, List or Map, as in Spark's messages.
        rows: The type of its values.
        progress: The progress of the processor.
    """

    def __init__(self, name: str, kind: str, rows: Structs, progress: Progress) -> None:
        self._name = name
        self._kind = kind
        self._rows = rows
        self._progress = progress
        self._cursor = progress.cursor
        self._is_deleted = False

    def delete(self) -> None:
        """Refuse all further use."""
        self._is_deleted = True

    def _check(self, action: str, operation: str) -> None:
        """Check that there is a current key. Raises `StatefulProcessorError`."""
        if self._cursor.index is not None and not self._is_deleted:
            return
        if self._is_deleted:
            raise errors.not_initialized(action, self._kind, self._name)
        handle_state = self._progress.handle_state
        if handle_state in ("PRE_INIT", "CREATED"):
            raise errors.invalid_handle_state(action, f"{self._name}.{operation}", handle_state)
        raise errors.no_key(action, self._name)

    def _row(self, rows: Structs, given: Iterable[Any], action: str) -> _Values:
        """Convert a value that a processor gives to a tuple of all fields.

        Raises:
            TypeError: The value is not a row.
            StatefulProcessorError: It has another number of fields than the schema.
            InvalidRequestError: A field has another type than in the schema.
        """
        if type(given) is not tuple:
            if isinstance(given, str | bytes | Mapping):
                raise InvalidRequestError(
                    f"state {self._name!r} takes tuples of {rows.name}, got {given!r} of type "
                    f"{type(given).__name__}; Spark would store its parts"
                )
            given = tuple(given)
        if len(given) != len(rows.fields):
            raise errors.length_mismatch(action, len(rows.fields), len(given))
        try:
            return rows.values(given)
        except InvalidValueError as error:
            message = f"state {self._name!r}: {error}; Spark would store another value"
            raise InvalidRequestError(message) from None


class ValueVariable(StateVariable, SparkValueState):
    """Spark's `ValueState`.

    Args:
        name: The variable's name.
        rows: The type of its values.
        progress: The progress of the processor.
        state: The state; not used on the driver.
    """

    def __init__(self, name: str, rows: Structs, progress: Progress, state: ValueState) -> None:
        super().__init__(name, "Value", rows, progress)
        self._state = state

    def exists(self) -> bool:
        self._check("checking value state exists", "exists")
        return self._state.value() is not None

    def get(self) -> _Values | None:
        self._check("getting value state", "get")
        return self._state.value()  # type: ignore[no-any-return]  # of the state's type

    def update(self, newValue: Any) -> None:  # Spark's name
        row = self._row(self._rows, newValue, "updating value state")
        self._check("updating value state", "update")
        self._state.update(row)

    def clear(self) -> None:
        self._check("clearing value state", "clear")
        self._state.clear()


class ListVariable(StateVariable, SparkListState):
    """Spark's `ListState`. Arguments are those of `ValueVariable`."""

    _WRITING = "updating value state"  # Spark's words, also for lists

    def __init__(self, name: str, rows: Structs, progress: Progress, state: KeyedListState) -> None:
        super().__init__(name, "List", rows, progress)
        self._state = state

    def exists(self) -> bool:
        self._check("checking value state exists", "exists")
        return not self._state.is_empty()

    def get(self) -> Iterator[_Values]:
        # A generator: it reads the state when its first element is requested.
        self._check("getting list state", "get")
        yield from self._state.get()

    def put(self, newState: Iterable[Any]) -> None:  # Spark's name
        elements = self._elements(newState)
        self._check(self._WRITING, "put")
        self._state.update(elements)

    def appendValue(self, newState: Any) -> None:  # Spark's names
        row = self._row(self._rows, newState, self._WRITING)
        self._check(self._WRITING, "appendValue")
        self._state.add(row)

    def appendList(self, newState: Iterable[Any]) -> None:  # Spark's names
        elements = self._elements(newState)
        self._check(self._WRITING, "appendList")
        self._state.add_all(elements)

    def clear(self) -> None:
        self._check("clearing value state", "clear")
        self._state.clear()

    def _elements(self, given: Iterable[Any]) -> list[_Values]:
        elements = [self._row(self._rows, value, self._WRITING) for value in given]
        if not elements:
            raise errors.empty_list(self._WRITING, self._name)
        return elements


class MapVariable(StateVariable, SparkMapState):
    """Spark's `MapState`.

    Args:
        name: The variable's name.
        key_rows: The type of the maps' keys.
        rows: The type of their values.
        progress: The progress of the processor.
        state: The state; not used on the driver.
    """

    def __init__(
        self, name: str, key_rows: Structs, rows: Structs, progress: Progress, state: MapState
    ) -> None:
        super().__init__(name, "Map", rows, progress)
        self._key_rows = key_rows
        self._state = state

    def exists(self) -> bool:
        self._check("checking map state exists", "exists")
        return not self._state.is_empty()

    def getValue(self, key: Any) -> Row | None:  # Spark's name
        value = self._value(key, "getting value", "getValue")
        return None if value is None else self._rows.row(value)

    def containsKey(self, key: Any) -> bool:  # Spark's name
        return self._value(key, "checking if map state contains key", "containsKey") is not None

    def updateValue(self, key: Any, value: Any) -> None:  # Spark's name
        action = "updating map state value"
        map_key = self._row(self._key_rows, key, action)
        row = self._row(self._rows, value, action)
        self._check(action, "updateValue")
        self._state.put(map_key, row)

    def iterator(self) -> Iterator[tuple[_Values, _Values]]:
        # Generators: they read the state when their first entry is requested.
        self._check("getting map state entries", "iterator")
        yield from self._state.entries()

    def keys(self) -> Iterator[_Values]:
        self._check("getting map state keys", "keys")
        yield from [key for key, _ in self._state.entries()]

    def values(self) -> Iterator[_Values]:
        self._check("getting map state values", "values")
        yield from [value for _, value in self._state.entries()]

    def removeKey(self, key: Any) -> None:  # Spark's name
        action = "removing key from map state"
        map_key = self._row(self._key_rows, key, action)
        self._check(action, "removeKey")
        self._state.remove(map_key)

    def clear(self) -> None:
        self._check("clearing map state", "clear")
        self._state.clear()

    def _value(self, key: Any, action: str, operation: str) -> _Values | None:
        map_key = self._row(self._key_rows, key, action)
        self._check(action, operation)
        return self._state.get(map_key)  # type: ignore[no-any-return]  # of the state's type


class ProcessorTimers:
    """The timers of a processor, for the current key.

    Args:
        service: The timers of the processor's time mode; None if it has none.
        progress: The progress of the processor.
    """

    def __init__(self, service: TimerService | None, progress: Progress) -> None:
        self._service = service
        self._progress = progress

    def register(self, time_ms: Any) -> None:
        """Register a timer."""
        time = _int64(time_ms)
        self._available_service("register timer", "register_timer").register(time)

    def delete(self, time_ms: Any) -> None:
        """Delete a timer, if it exists."""
        time = _int64(time_ms)
        self._available_service("deleting timer", "delete_timer").delete(time)

    def times(self) -> Iterator[int]:
        """Return the times of timers, ascending; they are read when the first one is requested."""
        self._available_service("listing timers", "list_timers")
        return self._times()

    def _times(self) -> Iterator[int]:
        yield from self._available_service("listing timers", "list_timers").times()

    def _available_service(self, action: str, operation: str) -> TimerService:
        """Return the timers if there is a current key. Raises `StatefulProcessorError`."""
        handle_state = self._progress.handle_state
        if self._service is None and handle_state != "PRE_INIT":
            raise errors.invalid_time_mode(action, operation)
        if self._service is None or self._progress.cursor.index is None:
            raise errors.invalid_handle_state(action, operation, handle_state)
        return self._service


def _int64(time_ms: Any) -> int:
    time = index(time_ms)  # a TypeError, unless it is an integer
    if not -MAX_INT64 - 1 <= time <= MAX_INT64:
        raise ValueError(f"Value out of range: {time}")
    return time
