"""A processor in one batch of one subtask: its calls in order, and its states over the backend's."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    TimerValues,
)
from pyspark.sql.types import StructType

from holdfast.backends.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.backends.keyed import KeyCursor, KeyedStateBackend, Keys, TimerService
from holdfast.backends.serializers import ANY_FIELD
from holdfast.errors import InvalidRequestError, StateMigrationError
from holdfast.spark.operators import KeyLoop, Order, TimeDomain
from holdfast.spark.processors.declarations import (
    Declaration,
    DeclarationRecorder,
    DeclaredVariables,
    SchemaParser,
    TimeMode,
)
from holdfast.spark.processors.handle import ProcessorHandle, Progress, StoredState
from holdfast.spark.processors.rows import ascending
from holdfast.spark.processors.value_types import RowSerializer, row_maker, struct_type

_MAX_MS = timedelta.max // timedelta(milliseconds=1)


class ProcessorRun:
    """Calls a processor, one key after the other, as Spark does.

    The calls come in this order:

        open
        keys, with input_rows or initial_state for each key
        expired_timers
        close

    Raises `StateMigrationError` if stored state can't be converted to the declared type.

    Args:
        processor: A copy for this run.
        backend: The states, at the time of the batch.
        declared: The variables that the processor declared on the driver.
        schemas: The schemas that were parsed there, by their text.
        time_mode: The time mode of the query.
        batch_time: The time of the batch, milliseconds since 1970.
        watermark: The watermark of the batch, likewise.
        key_values: Converts a key column to Python objects, as rows have them.
    """

    def __init__(
        self,
        processor: StatefulProcessor,
        backend: KeyedStateBackend,
        declared: DeclaredVariables,
        schemas: Mapping[str, StructType],
        *,
        time_mode: TimeMode,
        batch_time: int,
        watermark: int,
        key_values: Callable[[pa.Array], list[Any]],
    ) -> None:
        self._processor = processor
        self._declared = declared
        self._schemas = schemas
        self._row = row_maker(backend.key.names)
        self._progress = Progress(backend.cursor, "CREATED")
        service = open_timers(backend, time_mode)
        self._until_ms: dict[TimeDomain, int] = {"event": watermark, "processing": batch_time}
        domain: TimeDomain = "event" if time_mode == "eventtime" else "processing"
        timers = {} if service is None else {domain: service}
        self._loop = KeyLoop(backend, timers, key_values)
        times = (-1, -1) if service is None else (batch_time, watermark)
        self.timer_values = TimerValues(*times)
        for name in declared.deleted:  # before a variable of the same name has its new state
            backend.drop_state(name)
        self._states = [(each, _open_state(backend, each)) for each in declared.variables]
        recorder = DeclarationRecorder(time_mode, self._schema)
        self.handle = ProcessorHandle(self._progress, recorder, service, self._state)

    def open(self) -> None:
        """Let the processor declare its variables."""
        self._processor.init(self.handle)
        self._progress.handle_state = "INITIALIZED"

    def keys(self, keys: Keys, order: Order | None = None) -> Iterator[tuple[Any, ...]]:
        """Yield each key as processors see it, current until the next one is requested; then write back changes."""
        yield from self._loop.keys(keys, order)
        self._loop.end()

    def input_rows(self, key: tuple[Any, ...], rows: Iterator[Any]) -> Iterable[Any]:
        """Call the processor with the rows of the current key."""
        return self._processor.handleInputRows(key, rows, self.timer_values)

    def initial_state(self, key: tuple[Any, ...], states: Iterable[Any]) -> None:
        """Call the processor with the initial state of the current key, once for each row or frame."""
        for state in states:
            self._processor.handleInitialState(key, state, self.timer_values)

    def expired_timers(self) -> Iterator[Any]:
        """Call the processor for each timer that fires, and yield its output."""
        self._progress.handle_state = "DATA_PROCESSED"
        for key, time_ms, _ in self._loop.timers(self._until_ms, ascending):
            yield from self._processor.handleExpiredTimer(
                key=self._row(key),
                timerValues=self.timer_values,
                expiredTimerInfo=ExpiredTimerInfo(time_ms),
            )
        self._loop.end()

    def close(self) -> None:
        """Close the processor at the end of the batch."""
        self._progress.handle_state = "TIMER_PROCESSED"
        self._processor.close()
        self._progress.handle_state = "CLOSED"

    def _state(self, declaration: Declaration) -> StoredState | None:
        for each, state in self._states:
            if each == declaration:
                return state
        if declaration not in self._declared.withdrawn:
            raise _other_declaration_error(declaration.name)
        return None

    def _schema(self, text: str) -> StructType:
        schema = self._schemas.get(text)
        if schema is None:
            raise _other_declaration_error(text)
        return schema


def open_state(backend: KeyedStateBackend, declared: Declaration) -> StoredState:
    """Return the backend's state for a variable. Values are structs, so their fields are columns.

    Raises `StateMigrationError` if stored state can't be converted to the declared type.
    """
    name, ttl = declared.name, None
    if declared.ttl_ms is not None:
        ttl = StateTtlConfig(timedelta(milliseconds=min(declared.ttl_ms, _MAX_MS)))
    # As in Spark, a declaration without a stored field drops it.
    values = RowSerializer(struct_type(declared.schema), dropped=(ANY_FIELD,))
    if declared.kind == "value":
        return backend.get_state(ValueStateDescriptor(name, values, ttl=ttl))
    if declared.kind == "list":
        return backend.get_list_state(ListStateDescriptor(name, values, ttl=ttl))
    assert declared.key_schema is not None
    keys = RowSerializer(struct_type(declared.key_schema), dropped=None)
    return backend.get_map_state(MapStateDescriptor(name, keys, values, ttl=ttl))


def _open_state(backend: KeyedStateBackend, declared: Declaration) -> StoredState:
    """Return the same as `open_state`; errors have Spark's class in their message."""
    before = backend.specs().get(declared.name)
    try:
        return open_state(backend, declared)
    except StateMigrationError as error:
        condition = "[STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION] Schema evolution is not possible:"
        if before is not None and before.kind != declared.kind:
            condition = "[STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE]"
        raise StateMigrationError(f"{condition} {error.args[0]}") from error


def open_timers(backend: KeyedStateBackend, time_mode: TimeMode) -> TimerService | None:
    """Return the timers of a processor; None if its time mode has none."""
    if time_mode == "none":
        return None
    if time_mode == "eventtime":
        return backend.event_time_timers()
    return backend.processing_time_timers()


def record_declarations(
    processor: StatefulProcessor, time_mode: TimeMode, parse: SchemaParser | None = None
) -> tuple[DeclaredVariables, dict[str, StructType]]:
    """Run a processor's `init` and `close` on the driver, and return what it declares and the schemas by their text.

    The processor must be a copy. Raises `StatefulProcessorError` if Spark refuses a declaration, too, and
    `InvalidRequestError` if state can't have a type that is declared.
    """
    parse = parse or SchemaParser()
    recorder = DeclarationRecorder(time_mode, parse)
    processor.init(ProcessorHandle(Progress(KeyCursor(), "PRE_INIT"), recorder))
    processor.close()
    return recorder.result, parse.schemas


def _other_declaration_error(name: str) -> InvalidRequestError:
    message = (
        f"the processor's init declares state {name!r} with other arguments than when the query was started; its "
        "declarations must not depend on the time or the host"
    )
    return InvalidRequestError(message)
