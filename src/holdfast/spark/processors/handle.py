"""The handle that processors get: on the driver it takes down what they declare, in subtasks there is state behind it."""

from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from holdfast.backends.keyed import KeyedListState, MapState, ValueState
from holdfast.spark.processors import errors
from holdfast.spark.processors.declarations import Declaration, Declarations, Kind, Schema
from holdfast.spark.processors.state import (
    ListVariable,
    MapVariable,
    ProcessorTimers,
    ValueVariable,
)
from holdfast.spark.processors.turns import CurrentKey
from holdfast.spark.processors.values import struct_type

Variable = ValueVariable | ListVariable | MapVariable
StoredState = ValueState | KeyedListState | MapState


class ProcessorHandle(StatefulProcessorHandle):
    """Spark's handle over the states of a subtask, or of none.

    Args:
        current: The current key.
        declarations: Takes down what is declared.
        timers: The timers.
        state_of: Gives the state of a declaration; None on the driver.
    """

    def __init__(
        self,
        current: CurrentKey,
        declarations: Declarations,
        timers: ProcessorTimers,
        state_of: Callable[[Declaration], StoredState | None] | None = None,
    ) -> None:
        self._current = current
        self._declarations = declarations
        self._timers = timers
        self._state_of = state_of
        self.variables: dict[str, Variable] = {}

    def getValueState(  # Spark's names
        self,
        stateName: str,
        schema: Schema,
        ttlDurationMs: int | None = None,
    ) -> Any:
        return self._declared("value", stateName, schema, ttlDurationMs)

    def getListState(
        self,
        stateName: str,
        schema: Schema,
        ttlDurationMs: int | None = None,
    ) -> Any:
        return self._declared("list", stateName, schema, ttlDurationMs)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Schema,
        valueSchema: Schema,
        ttlDurationMs: int | None = None,
    ) -> Any:
        return self._declared("map", stateName, valueSchema, ttlDurationMs, userKeySchema)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._timers.register(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._timers.delete(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        return self._timers.all()

    def deleteIfExists(self, stateName: str) -> None:
        self._check_is_new("deleting state", "delete_if_exists")
        self._declarations.delete(stateName)
        variable = self.variables.pop(stateName, None)
        if variable is not None:
            variable.delete()

    def _declared(
        self,
        kind: Kind,
        name: str,
        schema: Schema,
        ttl_ms: int | None,
        key_schema: Schema | None = None,
    ) -> Variable:
        self._check_is_new(f"initializing {kind} state", f"get_{kind}_state")
        declaration = self._declarations.declare(kind, name, schema, ttl_ms, key_schema)
        state: Any = None if self._state_of is None else self._state_of(declaration)
        shape = struct_type(declaration.schema)
        variable: Variable
        if kind == "value":
            variable = ValueVariable(name, shape, self._current, state)
        elif kind == "list":
            variable = ListVariable(name, shape, self._current, state)
        else:
            assert declaration.key_schema is not None
            key_shape = struct_type(declaration.key_schema)
            variable = MapVariable(name, key_shape, shape, self._current, state)
        self.variables[name] = variable
        return variable

    def _check_is_new(self, doing: str, operation: str) -> None:
        state = self._current.handle_state
        if state not in ("PRE_INIT", "CREATED"):
            raise errors.invalid_handle_state(doing, operation, state)
