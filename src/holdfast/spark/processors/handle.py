"""The handle that processors get. On the driver it records declarations, in subtasks it gives access to state."""

from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from holdfast.backends.keyed import KeyedListState, MapState, ValueState
from holdfast.spark.processors import errors
from holdfast.spark.processors.declarations import Declaration, DeclarationRecorder, Kind, Schema
from holdfast.spark.processors.state_variables import (
    ListVariable,
    MapVariable,
    ProcessorTimers,
    Progress,
    ValueVariable,
)
from holdfast.spark.processors.value_types import struct_type

Variable = ValueVariable | ListVariable | MapVariable
StoredState = ValueState | KeyedListState | MapState


class ProcessorHandle(StatefulProcessorHandle):
    """Spark's handle over the states of a subtask.

    Args:
        progress: The progress of the processor.
        recorder: Records declarations.
        timers: The timers.
        state: Returns the state of a declaration; None on the driver.
    """

    def __init__(
        self,
        progress: Progress,
        recorder: DeclarationRecorder,
        timers: ProcessorTimers,
        state: Callable[[Declaration], StoredState | None] | None = None,
    ) -> None:
        self._progress = progress
        self._recorder = recorder
        self._timers = timers
        self._state = state
        self.variables: dict[str, Variable] = {}

    def getValueState(  # Spark's names
        self,
        stateName: str,
        schema: Schema,
        ttlDurationMs: int | None = None,
    ) -> Any:
        return self._declare("value", stateName, schema, ttlDurationMs)

    def getListState(
        self,
        stateName: str,
        schema: Schema,
        ttlDurationMs: int | None = None,
    ) -> Any:
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
        self._timers.register(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._timers.delete(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        return self._timers.times()

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
        state: Any = None if self._state is None else self._state(declaration)
        rows = struct_type(declaration.schema)
        variable: Variable
        if kind == "value":
            variable = ValueVariable(name, rows, self._progress, state)
        elif kind == "list":
            variable = ListVariable(name, rows, self._progress, state)
        else:
            assert declaration.key_schema is not None
            key_rows = struct_type(declaration.key_schema)
            variable = MapVariable(name, key_rows, rows, self._progress, state)
        self.variables[name] = variable
        return variable

    def _check_is_new(self, action: str, operation: str) -> None:
        state = self._progress.handle_state
        if state not in ("PRE_INIT", "CREATED"):
            raise errors.invalid_handle_state(action, operation, state)
