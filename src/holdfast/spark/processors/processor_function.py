"""Runs an unmodified `StatefulProcessor` of PySpark as an operator of ours."""

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
from holdfast.spark.operators import StatefulFunction
from holdfast.spark.processors.declarations import SchemaParser
from holdfast.spark.processors.modes import (
    TIME_MODES,
    TimeMode,
    check_output_mode,
    checked_time_mode,
)
from holdfast.spark.processors.processor_run import ProcessorRun, declared_by, timers_of
from holdfast.spark.processors.rows import (
    InputOfKeys,
    InputSettings,
    RowsOfKeys,
    RowsOut,
    values_in_rows,
)
from holdfast.spark.processors.turns import Turns, ascending, inverse
from holdfast.spark.processors.values import struct_type

Flavour = Literal["row", "pandas"]

INITIAL_STATE = "holdfast initial state"
"""The column of rows that are initial state of their key: all that they have. It is null in other rows."""

NOTES = MapStateDescriptor("processor", str, str)
"""The broadcast state that says how the processor was run before."""
_TIME_MODE = "time mode"


class ProcessorFunction(StatefulFunction):
    """A processor as a stateful function, for an operator with a key. To be constructed on the driver.

    The processor's `init` and `close` run once, in this process, on a copy of it: so its state is known, and what
    can't be declared is refused here. Each subtask has a fresh copy in each batch.

    Rows of initial state come among the rows of a batch, with the key and the column `INITIAL_STATE` alone.

    Args:
        processor: The processor; it is neither changed nor used itself.
        output_schema: Schema of the rows that it gives, Spark's, or a text.
        output_mode: Append or Update; it has no influence, as in Spark.
        time_mode: None, ProcessingTime or EventTime.
        flavour: Whether the processor reads and gives rows of Spark or frames of pandas.
        settings: How rows become Python objects, and those rows; None for those of the session.
        session: Parses texts of schemas, also one of Spark Connect; None for the active session.

    Attributes:
        output_schema: Schema of the rows that the processor gives.
        arrow_schema: The same in Arrow.

    Raises:
        StatefulProcessorError: The processor declares what Spark refuses, too; its class and words.
        AnalysisException: The output mode is Complete.
        IllegalArgumentException: The output mode or the time mode is unknown.
        InvalidRequestError: An argument is none of these, or state or output has a type that can't be kept.
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
            message = (
                f"{type(processor).__name__} is no StatefulProcessor; derive it from Spark's class"
            )
            raise InvalidRequestError(message)
        if flavour not in get_args(Flavour):
            message = f"the flavour of a processor is {flavour!r}; it can be {get_args(Flavour)}"
            raise InvalidRequestError(message)
        check_output_mode(output_mode)
        self._mode = checked_time_mode(time_mode)
        self.time_mode = TIME_MODES[self._mode]
        self._flavour = flavour
        session = session or SparkSession.getActiveSession()
        self._settings = settings or session_settings(session)
        parse = SchemaParser(session)
        schema = parse(output_schema) if isinstance(output_schema, str) else output_schema
        if not isinstance(schema, StructType):
            message = f"the output schema is {schema!r}; it must be that of rows"
            raise InvalidRequestError(message)
        self.arrow_schema = pa.schema(list(struct_type(schema).arrow))
        self.output_schema = schema
        self._pickled: bytes = cloudpickle.dumps(processor)  # type: ignore[no-untyped-call]
        copy = cloudpickle.loads(self._pickled)
        self._declared, self._schemas = declared_by(copy, self._mode, parse)

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
            key_values=self._key_values,
        )
        self._check_timers()

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = pa.Table.from_batches(gather(batches), self._input_schema)
        run = self._run
        run.open()
        output = self._output()
        if table.num_rows:
            yield from self._keys_called(table, output)
        yield from output.add(run.expired_timers())
        yield from output.flush()
        run.close()

    def _keys_called(self, table: pa.Table, output: Any) -> Iterator[pa.RecordBatch]:
        """Call the processor for each key that has rows or initial state."""
        run, names = self._run, self._backend.key.names
        initial: pa.Table | None = None
        initial_rows = 0
        if INITIAL_STATE in table.column_names:
            is_initial = table[INITIAL_STATE].is_valid()
            first = table.filter(is_initial)
            table = pa.concat_tables([first, table.filter(pc.invert(is_initial))])
            initial = pa.Table.from_struct_array(first[INITIAL_STATE])
            initial_rows = initial.num_rows
        columns = [table[name] for name in names]
        if initial is not None:
            table = table.slice(initial_rows).drop_columns([INITIAL_STATE])
        keys = self._backend.keys(columns)
        order = ascending(keys.columns)
        turns = inverse(order)[keys.codes]
        of_rows = Turns.of(turns[initial_rows:], len(keys))
        rows = self._input(table, of_rows)
        of_initial: Turns | None = None
        if initial is not None:
            of_initial = Turns.of(turns[:initial_rows], len(keys))
            states = self._input(initial, of_initial)
        objects = run.begin(keys, order)
        current, bounds = run.current, of_rows.bounds
        for turn, key in enumerate(objects):
            current.take_turn(turn)
            if of_initial is not None:
                run.initial_state(key, states.of(turn))
            if bounds[turn + 1] > bounds[turn]:
                yield from output.add(run.input_rows(key, rows.of(turn)))
        run.settle()

    def _key_values(self, column: pa.Array) -> list[Any]:
        if self._flavour == "row":
            return values_in_rows(column, self._settings.time_zone)
        from holdfast.spark.processors.frames import values_in_frames  # noqa: PLC0415  # pandas is slow to import

        return values_in_frames(column, self._settings.time_zone)

    def _input(self, table: pa.Table, turns: Turns) -> InputOfKeys:
        if self._flavour == "row":
            return RowsOfKeys(table, turns, self._settings)
        from holdfast.spark.processors.frames import FramesOfKeys  # noqa: PLC0415  # pandas is slow to import

        return FramesOfKeys(table, turns, self._settings)

    def _output(self) -> Any:
        if self._flavour == "row":
            return RowsOut(self.output_schema)
        from holdfast.spark.processors.frames import FramesOut  # noqa: PLC0415  # pandas is slow to import

        return FramesOut(self.output_schema, self._settings)

    def _check_timers(self) -> None:
        """Refuse another time mode than that of timers that are there."""
        before = self._known.get(_TIME_MODE, self._mode)
        self._known.put(_TIME_MODE, self._mode)
        if before == self._mode:
            return
        timers = timers_of(self._backend, before)
        if timers is not None and timers.columns.earliest() is not None:
            message = (
                f"the processor runs with time mode {self._mode!r}, and there are timers of {before!r} from before, "
                "which would never fire; run it with that mode until they are gone, or begin with a new operator uid"
            )
            raise StateMigrationError(message)


def notes_of(time_mode: TimeMode) -> dict[str, str]:
    """What a processor that has run before in that time mode has noted, in the broadcast state `NOTES`."""
    return {_TIME_MODE: time_mode}


def time_mode_of(notes: Mapping[str, str]) -> TimeMode:
    """The time mode in which a processor has run, by what it has noted."""
    return checked_time_mode(notes[_TIME_MODE])


def session_settings(session: SparkSession | None) -> InputSettings:
    """How rows become Python objects, and those rows, in a session; Spark's defaults without one."""
    if session is None:
        return InputSettings()
    conf = session.conf
    arrow, decimals = "spark.sql.execution.arrow", "pythonUDF.pandas.intToDecimalCoercionEnabled"
    return InputSettings(
        conf.get("spark.sql.session.timeZone") or "UTC",
        int(conf.get(f"{arrow}.maxRecordsPerBatch", "10000") or 10_000),
        _bytes(conf.get(f"{arrow}.maxBytesPerBatch", str(64 << 20)) or ""),
        conf.get(f"spark.sql.execution.{decimals}", "false") == "true",
    )


def _bytes(text: str) -> int:
    """A number of bytes as Spark writes it."""
    units = {"b": 0, "k": 10, "m": 20, "g": 30}
    text = text.lower().removesuffix("b") or "0"
    number = int(text.rstrip("kmg"))
    return (number << units[text[-1]] if text[-1] in units else number) or 64 << 20
