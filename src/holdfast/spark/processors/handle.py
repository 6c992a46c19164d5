"""The handle that processors get, and its state variables and timers: Spark's classes over our states of the current key.

On the driver the handle records declarations, in subtasks it gives access to state. Values are converted when they are
given (`Structs.values`), so state that was written in this batch looks like state of an earlier one. Errors are Spark's.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import index
from typing import Any

from pyspark.sql import Row

from holdfast.backends.keyed import KeyCursor, KeyedListState, MapState, TimerService, ValueState
from holdfast.common import MAX_INT64
from holdfast.errors import InvalidRequestError
from holdfast.spark import compat
from holdfast.spark.processors.declarations import (
    Declaration,
    DeclarationRecorder,
    Kind,
    Schema,
    StatefulProcessorError,
)
from holdfast.spark.processors.scalar_types import InvalidValueError
from holdfast.spark.processors.value_types import Structs, struct_type

StoredState = ValueState | KeyedListState | MapState

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

    def phase_error(self, action: str, operation: str) -> StatefulProcessorError:
        """Return Spark's error for an operation in the wrong phase."""
        return StatefulProcessorError(
            f"Error {action}: [STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE] Failed to perform "
            f"stateful processor operation={operation} with invalid handle state={self.handle_state}."
        )


class StateVariable:
    """A state variable of a processor, for the current key. On the driver it has no state, and is never used."""

    def __init__(self, declaration: Declaration, progress: Progress, state: Any) -> None:
        self._name = declaration.name
        self._kind = declaration.kind
        self._rows = struct_type(declaration.schema)
        self._progress = progress
        self._cursor = progress.cursor
        self._state = state
        self._is_deleted = False

    def delete(self) -> None:
        """Refuse all further use."""
        self._is_deleted = True

    def _check(self, action: str, operation: str) -> None:
        """Check that there is a current key. Raises `StatefulProcessorError`."""
        if self._cursor.index is not None and not self._is_deleted:
            return
        if self._is_deleted:
            raise StatefulProcessorError(
                f"Error {action}: {self._kind.capitalize()} state {self._name} is not initialized."
            )
        if self._progress.handle_state in ("PRE_INIT", "CREATED"):
            raise self._progress.phase_error(action, f"{self._name}.{operation}")
        raise StatefulProcessorError(
            f"Error {action}: [INTERNAL_ERROR_TWS] Implicit key not found in state store for stateName={self._name}"
        )

    def _row(self, rows: Structs, given: Iterable[Any], action: str) -> _Values:
        """Convert a value that a processor gives to a tuple of all fields.

        Raises `TypeError` if it is not a row, `StatefulProcessorError` if it has another number of fields than the schema,
        and `InvalidRequestError` if a field has another type.
        """
        if type(given) is not tuple:
            if isinstance(given, str | bytes | Mapping):
                raise InvalidRequestError(
                    f"state {self._name!r} takes tuples of {rows.name}, got {given!r} of type "
                    f"{type(given).__name__}; Spark would store its parts"
                )
            given = tuple(given)
        if len(given) != len(rows.fields):
            raise StatefulProcessorError(
                f"Error {action}: [STRUCT_ARRAY_LENGTH_MISMATCH] Input row doesn't have expected number of values "
                f"required by the schema. {len(rows.fields)} fields are required while {len(given)} values are provided."
            )
        try:
            return rows.values(given)
        except InvalidValueError as error:
            raise InvalidRequestError(
                f"state {self._name!r}: {error}; Spark would store another value"
            ) from None


class ValueVariable(StateVariable, compat.ValueState):
    """Spark's `ValueState`."""

    _state: ValueState

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


class ListVariable(StateVariable, compat.ListState):
    """Spark's `ListState`."""

    _state: KeyedListState

    _WRITING = "updating value state"  # Spark's words, also for lists

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
            raise StatefulProcessorError(
                f"Error {self._WRITING}: [ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE] Illegal value provided to the "
                f"State Store: Cannot write empty list values to State Store for StateName {self._name}."
            )
        return elements


class MapVariable(StateVariable, compat.MapState):
    """Spark's `MapState`."""

    _state: MapState

    def __init__(self, declaration: Declaration, progress: Progress, state: Any) -> None:
        super().__init__(declaration, progress, state)
        assert declaration.key_schema is not None
        self._key_rows = struct_type(declaration.key_schema)

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


Variable = ValueVariable | ListVariable | MapVariable

_VARIABLES: dict[Kind, type[Variable]] = {
    "value": ValueVariable,
    "list": ListVariable,
    "map": MapVariable,
}


class ProcessorHandle(compat.StatefulProcessorHandle):
    """Spark's handle over the states of a subtask.

    Args:
        progress: The progress of the processor.
        recorder: Records declarations.
        timers: The timers of the processor's time mode; None if it has none, and on the driver.
        state: Returns the state of a declaration; None on the driver.

    Attributes:
        variables: The state variables by name.
    """

    def __init__(
        self,
        progress: Progress,
        recorder: DeclarationRecorder,
        timers: TimerService | None = None,
        state: Callable[[Declaration], StoredState | None] = lambda _: None,
    ) -> None:
        self._progress = progress
        self._recorder = recorder
        self._timers = timers
        self._state = state
        self.variables: dict[str, Variable] = {}

    def getValueState(  # Spark's names
        self, stateName: str, schema: Schema, ttlDurationMs: int | None = None
    ) -> Any:
        return self._declare("value", stateName, schema, ttlDurationMs)

    def getListState(self, stateName: str, schema: Schema, ttlDurationMs: int | None = None) -> Any:
        return self._declare("list", stateName, schema, ttlDurationMs)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Schema,
        valueSchema: Schema,
        ttlDurationMs: int | None = None,
    ) -> Any:
        return self._declare("map", stateName, valueSchema, ttlDurationMs, userKeySchema)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        time_ms = _int64(expiryTimestampMs)
        self._available_timers("register timer", "register_timer").register(time_ms)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        time_ms = _int64(expiryTimestampMs)
        self._available_timers("deleting timer", "delete_timer").delete(time_ms)

    def listTimers(self) -> Iterator[int]:
        self._available_timers("listing timers", "list_timers")
        return self._times_of_timers()

    def deleteIfExists(self, stateName: str) -> None:
        self._check_is_new("deleting state", "delete_if_exists")
        self._recorder.delete(stateName)
        variable = self.variables.pop(stateName, None)
        if variable is not None:
            variable.delete()

    def _declare(
        self,
        kind: Kind,
        name: str,
        schema: Schema,
        ttl_ms: int | None,
        key_schema: Schema | None = None,
    ) -> Variable:
        self._check_is_new(f"initializing {kind} state", f"get_{kind}_state")
        declaration = self._recorder.declare(kind, name, schema, ttl_ms, key_schema)
        variable = _VARIABLES[kind](declaration, self._progress, self._state(declaration))
        self.variables[name] = variable
        return variable

    def _times_of_timers(self) -> Iterator[int]:
        # A generator: it reads the timers when the first one is requested.
        yield from self._available_timers("listing timers", "list_timers").times()

    def _check_is_new(self, action: str, operation: str) -> None:
        if self._progress.handle_state not in ("PRE_INIT", "CREATED"):
            raise self._progress.phase_error(action, operation)

    def _available_timers(self, action: str, operation: str) -> TimerService:
        """Return the timers if there is a current key. Raises `StatefulProcessorError`."""
        if self._timers is None and self._progress.handle_state != "PRE_INIT":
            raise StatefulProcessorError(
                f"Error {action}: [STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE] Failed to "
                f"perform stateful processor operation={operation} with invalid timeMode=NoTime"
            )
        if self._timers is None or self._progress.cursor.index is None:
            raise self._progress.phase_error(action, operation)
        return self._timers


def _int64(time_ms: Any) -> int:
    time = index(time_ms)  # a TypeError, unless it is an integer
    if not -MAX_INT64 - 1 <= time <= MAX_INT64:
        raise ValueError(f"Value out of range: {time}")
    return time
