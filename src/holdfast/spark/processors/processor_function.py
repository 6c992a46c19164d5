"""An operator that runs an unmodified `StatefulProcessor` of PySpark."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from holdfast.backends.arrow import gather
from holdfast.backends.descriptors import MapStateDescriptor
from holdfast.backends.functions import NO_WATERMARK, FunctionInitializationContext
from holdfast.backends.keyed import KeyedStateBackend
from holdfast.backends.operator import BroadcastState
from holdfast.errors import InvalidRequestError, StateMigrationError
from holdfast.spark.operators import StatefulFunction, inverse
from holdfast.spark.processors import rows
from holdfast.spark.processors.declarations import (
    TIME_MODES,
    SchemaParser,
    TimeMode,
    check_output_mode,
    parse_time_mode,
)
from holdfast.spark.processors.processor_run import ProcessorRun, open_timers, record_declarations
from holdfast.spark.processors.rows import CallRows, InputSettings, ascending
from holdfast.spark.processors.value_types import struct_type

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

    Rows of initial state are among the rows of a batch, with only the key and the column `INITIAL_STATE`.

    Args:
        processor: The processor; only copies of it are used.
        output_schema: The schema of its output, as a Spark type or a DDL string.
        output_mode: Append or Update; without effect, as in Spark.
        time_mode: None, ProcessingTime or EventTime.
        flavour: Whether the processor reads and returns rows of Spark or frames of pandas.
        settings: Settings of the conversion between rows and Python objects; None for those of the session.
        session: The session that parses schemas, also one of Spark Connect; None for the active session.

    Attributes:
        output_schema: The schema of the processor's output.
        arrow_schema: The same in Arrow.

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
        schema = parse(output_schema) if isinstance(output_schema, str) else output_schema
        if not isinstance(schema, StructType):
            raise InvalidRequestError(f"the output schema must be a struct, got {schema!r}")
        self.arrow_schema = pa.schema(list(struct_type(schema).arrow))
        self.output_schema = schema
        self._pickled: bytes = cloudpickle.dumps(processor)  # type: ignore[no-untyped-call]
        copy = cloudpickle.loads(self._pickled)
        self._declared, self._schemas = record_declarations(copy, self._mode, parse)

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self._backend: KeyedStateBackend = context.keyed_state_store
        self._input_schema = context.input_schema
        self._known: BroadcastState = context.operator_state_store.get_broadcast_state(NOTES)
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
        self._check_timers()

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

    def _check_timers(self) -> None:
        """Check that no timers of another time mode exist. Raises `StateMigrationError`."""
        before = self._known.get(_TIME_MODE, self._mode)
        self._known.put(_TIME_MODE, self._mode)
        if before == self._mode:
            return
        timers = open_timers(self._backend, before)
        if timers is not None and timers.columns.earliest() is not None:
            raise StateMigrationError(
                f"the processor runs with time mode {self._mode!r}, but has timers of {before!r} from an earlier run, "
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
