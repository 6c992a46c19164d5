"""An operator that runs an unmodified `StatefulProcessor` of PySpark, and the run of a processor in one batch of a subtask."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from holdfast.backends.arrow import gather
from holdfast.backends.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.backends.functions import NO_WATERMARK, FunctionInitializationContext
from holdfast.backends.keyed import KeyCursor, KeyedStateBackend, Keys, TimerService
from holdfast.backends.operator import BroadcastState, OperatorStateBackend
from holdfast.backends.serializers import ANY_FIELD
from holdfast.errors import InvalidRequestError, StateMigrationError
from holdfast.spark.compat import ExpiredTimerInfo, StatefulProcessor, TimerValues
from holdfast.spark.operators import KeyLoop, Order, StatefulFunction, TimeDomain, inverse
from holdfast.spark.processors import rows
from holdfast.spark.processors.declarations import (
    TIME_MODES,
    Declaration,
    DeclarationRecorder,
    DeclaredVariables,
    SchemaParser,
    TimeMode,
    check_output_mode,
    parse_time_mode,
)
from holdfast.spark.processors.handle import ProcessorHandle, Progress, StoredState
from holdfast.spark.processors.rows import CallRows, InputSettings, ascending
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
    """Return the backend's state for a variable, whose fields are columns. Raises `StateMigrationError`."""
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


Flavour = Literal["row", "pandas"]

INITIAL_STATE = "holdfast initial state"
"""The column of rows that are the initial state of their key; null in other rows."""

NOTES = MapStateDescriptor("processor", str, str)
"""The broadcast state with the settings of the processor's last run."""
_TIME_MODE = "time mode"


class ProcessorFunction(StatefulFunction):
    """A processor as a stateful function, for an operator with a key. Constructed on the driver.

    The processor's `init` and `close` run once on the driver, on a copy of it: its state is known then, and invalid
    declarations are refused early. Each subtask has a new copy in each batch.

    Rows of initial state are among the rows of a batch, with only the key and the column `INITIAL_STATE`. The output mode
    has no effect, as in Spark. Settings, and the session that parses schemas, are those of the active session if None.

    Raises:
        StatefulProcessorError: Spark refuses a declaration of the processor, too.
        AnalysisException: The output mode is Complete.
        IllegalArgumentException: The output mode or the time mode is unknown.
        InvalidRequestError: Another argument is not valid, or state or output has a type that can't be stored.
    """

    def __init__(
        self,
        processor: StatefulProcessor,
        output_schema: StructType | str,
        output_mode: str = "Append",
        time_mode: str = "None",
        *,
        flavour: Flavour = "row",
        settings: InputSettings | None = None,
        session: SparkSession | None = None,
    ) -> None:
        if isinstance(processor, type):
            raise InvalidRequestError(f"{processor.__name__} is a class; pass an object of it")
        if not isinstance(processor, StatefulProcessor):
            message = f"{type(processor).__name__} is not a StatefulProcessor; derive it from Spark's class"
            raise InvalidRequestError(message)
        if flavour not in get_args(Flavour):
            raise InvalidRequestError(
                f"the flavour of a processor must be one of {get_args(Flavour)}, got {flavour!r}"
            )
        check_output_mode(output_mode)
        self._mode = parse_time_mode(time_mode)
        self.time_mode = TIME_MODES[self._mode]
        self._flavour = flavour
        session = session or SparkSession.getActiveSession()
        self._settings = settings or session_settings(session)
        parse = SchemaParser(session)
        self.output_schema = parse.struct(output_schema, "output schema")
        self.arrow_schema = pa.schema(list(struct_type(self.output_schema).arrow))
        self._pickled: bytes = cloudpickle.dumps(processor)  # type: ignore[no-untyped-call]
        copy = cloudpickle.loads(self._pickled)
        self._declared, self._schemas = record_declarations(copy, self._mode, parse)

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self._backend: KeyedStateBackend = context.keyed_state_store
        self._input_schema = context.input_schema
        self._run = ProcessorRun(
            cloudpickle.loads(self._pickled),
            self._backend,
            self._declared,
            self._schemas,
            time_mode=self._mode,
            batch_time=context.batch_time,
            watermark=0 if context.watermark == NO_WATERMARK else context.watermark,  # as in Spark
            key_values=lambda column: self._format.objects_in(column, self._settings.time_zone),
        )
        check_time_mode(self._mode, self._backend, context.operator_state_store)

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = pa.Table.from_batches(gather(batches), self._input_schema)
        run = self._run
        run.open()
        output = self._format.Output(self.output_schema, self._settings)
        if table.num_rows:
            yield from self._call_keys(table, output)
        yield from output.add(run.expired_timers())
        yield from output.flush()
        run.close()

    def _call_keys(self, table: pa.Table, output: Any) -> Iterator[pa.RecordBatch]:
        """Call the processor for each key that has rows or initial state."""
        run = self._run
        initial: pa.Table | None = None
        initial_rows = 0
        if INITIAL_STATE in table.column_names:
            is_initial = table[INITIAL_STATE].is_valid()
            first = table.filter(is_initial)
            table = pa.concat_tables([first, table.filter(pc.invert(is_initial))])
            initial = pa.Table.from_struct_array(first[INITIAL_STATE])
            initial_rows = initial.num_rows
        columns = [table[name] for name in self._backend.key.names]
        if initial is not None:
            table = table.slice(initial_rows).drop_columns([INITIAL_STATE])
        keys = self._backend.keys(columns)
        order = ascending(keys.columns)
        call_of_row = inverse(order)[keys.codes]
        by_call = CallRows.of(call_of_row[initial_rows:], len(keys))
        given, bounds = self._format.Input(table, by_call, self._settings), by_call.bounds
        states: Any = None
        if initial is not None:
            initial_by_call = CallRows.of(call_of_row[:initial_rows], len(keys))
            states = self._format.Input(initial, initial_by_call, self._settings)
        for call, key in enumerate(run.keys(keys, order)):
            if states is not None:
                run.initial_state(key, states.of(call))
            if bounds[call + 1] > bounds[call]:
                yield from output.add(run.input_rows(key, given.of(call)))

    @property
    def _format(self) -> Any:
        """The module that converts a batch for the processor, with the classes `Input` and `Output`."""
        if self._flavour == "row":
            return rows
        from holdfast.spark.processors import frames  # noqa: PLC0415  # pandas is slow to import

        return frames


def check_time_mode(
    mode: TimeMode, backend: KeyedStateBackend, store: OperatorStateBackend
) -> None:
    """Note the time mode of this run. Raises `StateMigrationError` if there are timers of another time mode."""
    known: BroadcastState = store.get_broadcast_state(NOTES)
    before = known.get(_TIME_MODE, mode)
    known.put(_TIME_MODE, mode)
    if before == mode:
        return
    timers = open_timers(backend, before)
    if timers is not None and timers.columns.earliest() is not None:
        raise StateMigrationError(
            f"the operator runs with time mode {mode!r}, but has timers of {before!r} from an earlier run, "
            "which would never fire; run it with that mode until they have fired, or use a new operator uid"
        )


def notes_of(time_mode: TimeMode) -> dict[str, str]:
    """Return the entries of the broadcast state `NOTES` of a processor that has run in a time mode."""
    return {_TIME_MODE: time_mode}


def time_mode_of(notes: Mapping[str, str]) -> TimeMode:
    """Return the time mode in which a processor has run, from its broadcast state `NOTES`."""
    return parse_time_mode(notes[_TIME_MODE])


def session_settings(session: SparkSession | None) -> InputSettings:
    """Return the settings of a session for the conversion of rows; Spark's defaults without a session."""
    if session is None:
        return InputSettings()
    conf = session.conf
    arrow, decimals = "spark.sql.execution.arrow", "pythonUDF.pandas.intToDecimalCoercionEnabled"
    return InputSettings(
        conf.get("spark.sql.session.timeZone") or "UTC",
        int(conf.get(f"{arrow}.maxRecordsPerBatch", "10000") or 10_000),
        _parse_bytes(conf.get(f"{arrow}.maxBytesPerBatch", str(64 << 20)) or ""),
        conf.get(f"spark.sql.execution.{decimals}", "false") == "true",
    )


def _parse_bytes(text: str) -> int:
    """Parse a number of bytes in Spark's notation."""
    units = {"b": 0, "k": 10, "m": 20, "g": 30}
    text = text.lower().removesuffix("b") or "0"
    number = int(text.rstrip("kmg"))
    return (number << units[text[-1]] if text[-1] in units else number) or 64 << 20
