"""A processor in one batch of one subtask: its calls in order, and its states over the backend's."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    TimerValues,
)
from pyspark.sql.types import StructType

from holdfast.backends.arrow import named_conversion
from holdfast.backends.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.backends.keyed import KeyedStateBackend, Keys, TimerService
from holdfast.backends.serializers import ANY_FIELD
from holdfast.errors import InvalidRequestError, StateMigrationError
from holdfast.spark.processors import errors
from holdfast.spark.processors.declarations import (
    Declaration,
    Declarations,
    Declared,
    SchemaParser,
)
from holdfast.spark.processors.handle import ProcessorHandle, StoredState
from holdfast.spark.processors.modes import TimeMode
from holdfast.spark.processors.state import ProcessorTimers
from holdfast.spark.processors.turns import CurrentKey, Numbers, ascending, inverse
from holdfast.spark.processors.values import many_objects, row_maker, struct_type

_MOST_MS = timedelta.max // timedelta(milliseconds=1)


class ProcessorRun:
    """Calls a processor, one key after the other, as Spark does.

    The calls come in this order:

        open
        begin, then call for each key; settle
        expired_timers
        close

    Args:
        processor: A copy that nobody else uses.
        backend: The states, at the time of the batch.
        declared: What the processor declared on the driver.
        schemas: What texts of schemas were there.
        time_mode: The query's.
        batch_time: The time of the batch, milliseconds since 1970.
        watermark: The watermark of the batch, likewise.
        key_values: Makes objects of a key's column, such as rows have them.

    Raises:
        StateMigrationError: What is stored can't become what was declared.
    """

    def __init__(
        self,
        processor: StatefulProcessor,
        backend: KeyedStateBackend,
        declared: Declared,
        schemas: Mapping[str, StructType],
        *,
        time_mode: TimeMode,
        batch_time: int,
        watermark: int,
        key_values: Callable[[pa.Array], list[Any]],
    ) -> None:
        self._processor = processor
        self._backend = backend
        self._declared = declared
        self._schemas = schemas
        self._key_values = key_values
        self._row = row_maker(backend.key.names)
        self.current = CurrentKey("CREATED")
        self._service = service = timers_of(backend, time_mode)
        self._until_ms = watermark if time_mode == "eventtime" else batch_time
        times = (-1, -1) if service is None else (batch_time, watermark)
        self.timer_values = TimerValues(*times)
        for name in declared.deleted:  # before a variable of the same name has its new state
            backend.drop_state(name)
        self._states = [(each, _stored(backend, each)) for each in declared.variables]
        self._timers = ProcessorTimers(backend, service, self.current)
        self._declarations = Declarations(time_mode, self._schema_of)
        self.handle = ProcessorHandle(
            self.current, self._declarations, self._timers, self._state_of
        )

    def open(self) -> None:
        """Let the processor declare its variables."""
        self._processor.init(self.handle)
        self.current.handle_state = "INITIALIZED"

    def begin(self, keys: Keys, order: Numbers) -> list[tuple[Any, ...]]:
        """Begin a phase of keys, and give them as processors see them.

        Args:
            keys: The keys.
            order: For each turn the index of its key.
        """
        self.current.begin(keys, order)
        self._begin_variables()
        self._timers.begin()
        return self._objects(keys, order)

    def settle(self) -> None:
        """Write back what has changed; no key is current any more."""
        self.current.end()
        for variable in self.handle.variables.values():
            variable.store()
        self._timers.store()

    def input_rows(self, key: tuple[Any, ...], rows: Iterator[Any]) -> Iterable[Any]:
        """Hand the rows of the current key to the processor."""
        return self._processor.handleInputRows(key, rows, self.timer_values)

    def initial_state(self, key: tuple[Any, ...], states: Iterable[Any]) -> None:
        """Hand the initial state of the current key to the processor, each row or frame in a call."""
        for state in states:
            self._processor.handleInitialState(key, state, self.timer_values)

    def expired_timers(self) -> Iterator[Any]:
        """Have the timers handled whose time has come; gives what the processor gives."""
        self.current.handle_state = "DATA_PROCESSED"
        fired = None if self._service is None else self._service.fire(self._until_ms)
        if not fired:
            return
        keys = self._backend.keys(list(fired.key))
        places = inverse(ascending(keys.columns))
        order = np.lexsort((places[keys.codes], fired.times_ms))
        visits, times = keys.codes[order], fired.times_ms[order].tolist()
        every = np.arange(len(keys))
        self.current.begin(keys, every, visits)
        self._begin_variables()
        firing: dict[int, set[int]] = {}
        for number, time in zip(visits.tolist(), times, strict=True):
            firing.setdefault(number, set()).add(time)
        self._timers.begin(firing)
        rows = list(map(self._row, self._objects(keys, every)))
        for turn, (number, time) in enumerate(zip(visits.tolist(), times, strict=True)):
            self.current.take_turn(turn)
            yield from self._processor.handleExpiredTimer(
                key=rows[number],
                timerValues=self.timer_values,
                expiredTimerInfo=ExpiredTimerInfo(time),
            )
            self._timers.fired(time)
        self.settle()

    def close(self) -> None:
        """Tell the processor that the batch is over."""
        self.current.handle_state = "TIMER_PROCESSED"
        self._processor.close()
        self.current.handle_state = "CLOSED"

    def _begin_variables(self) -> None:
        for variable in self.handle.variables.values():
            variable.begin()

    def _objects(self, keys: Keys, order: Numbers) -> list[tuple[Any, ...]]:
        at = pa.array(order)
        with many_objects():
            values = []
            for name, column in zip(self._backend.key.names, keys.columns, strict=True):
                with named_conversion(f"key column {name!r}", column.type):
                    values.append(self._key_values(column.take(at)))
            return list(zip(*values, strict=True))

    def _state_of(self, declaration: Declaration) -> StoredState | None:
        for each, state in self._states:
            if each == declaration:
                return state
        if declaration not in self._declared.given_up:
            raise _declares_otherwise(declaration.name)
        return None

    def _schema_of(self, text: str) -> StructType:
        schema = self._schemas.get(text)
        if schema is None:
            raise _declares_otherwise(text)
        return schema


def state_of(backend: KeyedStateBackend, declared: Declaration) -> StoredState:
    """The state of the backend that has a variable's values, which are structs: their fields are columns.

    Raises:
        StateMigrationError: What is stored can't become what is declared.
    """
    name, ttl = declared.name, None
    if declared.ttl_ms is not None:
        ttl = StateTtlConfig(timedelta(milliseconds=min(declared.ttl_ms, _MOST_MS)))
    values = struct_type(declared.schema).arrow
    dropped = (ANY_FIELD,)  # as in Spark: a declaration without a field drops it
    if declared.kind == "value":
        return backend.get_state(ValueStateDescriptor(name, values, dropped=dropped, ttl=ttl))
    if declared.kind == "list":
        return backend.get_list_state(ListStateDescriptor(name, values, dropped=dropped, ttl=ttl))
    assert declared.key_schema is not None
    keys = struct_type(declared.key_schema).arrow
    return backend.get_map_state(MapStateDescriptor(name, keys, values, dropped=dropped, ttl=ttl))


def _stored(backend: KeyedStateBackend, declared: Declaration) -> StoredState:
    """What `state_of` gives; its error bears Spark's class."""
    before = backend.specs().get(declared.name)
    try:
        return state_of(backend, declared)
    except StateMigrationError as error:
        is_other_kind = before is not None and before.kind != declared.kind
        raise errors.no_evolution(error.args[0], is_other_kind=is_other_kind) from error


def timers_of(backend: KeyedStateBackend, time_mode: TimeMode) -> TimerService | None:
    """The timers of a processor; None where it has none."""
    if time_mode == "none":
        return None
    if time_mode == "eventtime":
        return backend.event_time_timers()
    return backend.processing_time_timers()


def declared_by(
    processor: StatefulProcessor, time_mode: TimeMode, parse: SchemaParser | None = None
) -> tuple[Declared, dict[str, StructType]]:
    """What a processor declares, and what texts of schemas are; on the driver, where its `init` and `close` run once.

    Args:
        processor: A copy that nobody else uses.
        time_mode: The query's.
        parse: Parses texts of schemas; None for the classic session of this process.

    Raises:
        StatefulProcessorError: It declares what Spark refuses, too.
        InvalidRequestError: A state has a type that can't be kept.
    """
    current, parse = CurrentKey("PRE_INIT"), parse or SchemaParser()
    declarations = Declarations(time_mode, parse)
    handle = ProcessorHandle(current, declarations, ProcessorTimers(None, None, current))
    processor.init(handle)
    processor.close()
    return declarations.result, parse.parsed


def _declares_otherwise(what: str) -> InvalidRequestError:
    message = (
        f"the processor's init declares state {what!r} otherwise than when the query was started; it must declare "
        "the same each time, whatever the time and the host"
    )
    return InvalidRequestError(message)
