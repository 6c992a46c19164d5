"""An operator that runs a function written for PySpark's `applyInPandasWithState`, unmodified.

Its states are `state`, the value that the function sets, and `timeout`. A key can have a timeout and no value:

    state     the fields of the function's state
    timeout   at: the time that the function set, as Spark stores it; a key times out after it
              timer: the time of the key's only timer

The timer of a key is at `at + 1`. If a call for a timeout changes nothing, Spark calls the function again in each batch.
Then the timer moves to the time after that of the batch, so that it does not request another batch at once.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkRuntimeError, PySparkTypeError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import LongType, StructField, StructType

from holdfast.backends.arrow import gather
from holdfast.backends.functions import NO_WATERMARK, FunctionInitializationContext
from holdfast.backends.keyed import KeyedStateBackend, Keys, TimerService, ValueState
from holdfast.common import MAX_INT64
from holdfast.errors import InvalidRequestError
from holdfast.spark.operators import KeyLoop, StatefulFunction, inverse
from holdfast.spark.processors.declarations import (
    TIME_MODES,
    Declaration,
    SchemaParser,
    TimeMode,
    check_output_mode,
)
from holdfast.spark.processors.handle import Progress, ValueVariable
from holdfast.spark.processors.processor_function import (
    check_time_mode,
    open_state,
    open_timers,
    session_settings,
)
from holdfast.spark.processors.rows import CallRows, InputSettings, ascending
from holdfast.spark.processors.value_types import struct_type

STATE = "state"
TIMEOUT = Declaration(
    "timeout",
    "value",
    StructType(
        [StructField("at", LongType(), nullable=False), StructField("timer", LongType(), False)]
    ),
)

TIME_MODE_OF_TIMEOUT: dict[str, TimeMode] = {
    GroupStateTimeout.NoTimeout: "none",
    GroupStateTimeout.ProcessingTimeTimeout: "processingtime",
    GroupStateTimeout.EventTimeTimeout: "eventtime",
}
"""The time modes of processors, by the timeouts of Spark's functions."""

_NO_TIME = GroupState.NO_TIMESTAMP

GroupStateUserFunction = Callable[[tuple[Any, ...], Iterator[Any], GroupState], Iterable[Any]]
"""A function for `applyInPandasWithState`: called with the key, its frames and its state, it yields frames."""


class GroupStateFunction(StatefulFunction):
    """A function written for `applyInPandasWithState` as a stateful function, for an operator with a key.

    Settings, and the session that parses schemas, are those of the active session if None.

    Args:
        function: The user's function.
        output_schema: The schema of its output frames.
        state_schema: The fields of its state.
        output_mode: Append or Update; both have the same effect, as in Spark.
        timeout: One of `GroupStateTimeout`.
        has_watermark: Whether the rows have a watermark, so that the function can ask for it.

    Raises:
        AnalysisException: The output mode is Complete.
        IllegalArgumentException: The output mode is unknown.
        InvalidRequestError: Another argument is not valid, or state or output has a type that can't be stored.
    """

    def __init__(
        self,
        function: GroupStateUserFunction,
        output_schema: StructType | str,
        state_schema: StructType | str,
        output_mode: str,
        timeout: str,
        *,
        has_watermark: bool = False,
        settings: InputSettings | None = None,
        session: SparkSession | None = None,
    ) -> None:
        if not callable(function):
            message = f"func must be a function of a key, frames and a state, got {function!r}"
            raise InvalidRequestError(message)
        if timeout not in TIME_MODE_OF_TIMEOUT:
            raise InvalidRequestError(
                f"timeoutConf must be one of {list(TIME_MODE_OF_TIMEOUT)}, got {timeout!r}"
            )
        check_output_mode(output_mode, "applyInPandasWithState")
        session = session or SparkSession.getActiveSession()
        parse = SchemaParser(session)
        self._function = function
        self._timeout = timeout
        self._mode = TIME_MODE_OF_TIMEOUT[timeout]
        self.time_mode = TIME_MODES[self._mode]
        self._has_watermark = has_watermark
        self._settings = settings or session_settings(session)
        self.output_schema = parse.struct(output_schema, "output schema")
        self.arrow_schema = pa.schema(list(struct_type(self.output_schema).arrow))
        self._state = Declaration(STATE, "value", parse.struct(state_schema, "state schema"))
        struct_type(self._state.schema)  # for its errors

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        backend = context.keyed_state_store
        check_time_mode(self._mode, backend, context.operator_state_store)
        watermark = 0 if context.watermark == NO_WATERMARK else context.watermark  # as in Spark
        self._input_schema = context.input_schema
        self._backend = backend
        progress = Progress(backend.cursor, "INITIALIZED")
        self._value = ValueVariable(self._state, progress, open_state(backend, self._state))
        self._timeouts: Timeouts | None = None
        timers = open_timers(backend, self._mode)
        if timers is not None:
            now_ms = watermark if self._mode == "eventtime" else context.batch_time
            stored = open_state(backend, TIMEOUT)
            assert isinstance(stored, ValueState)
            self._timeouts = Timeouts(stored, timers, now_ms)
        self._make_state: Callable[..., TrackedGroupState] = partial(
            TrackedGroupState,
            batchProcessingTimeMs=context.batch_time,
            eventTimeWatermarkMs=watermark,
            timeoutConf=self._timeout,
            watermarkPresent=self._has_watermark,
            updated=False,
            removed=False,
            timeoutTimestamp=_NO_TIME,  # also of a key with a timeout, as in Spark
            keyAsUnsafe=b"",
            valueSchema=self._state.schema,
        )

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from holdfast.spark.processors import frames  # noqa: PLC0415  # pandas is slow to import

        table = pa.Table.from_batches(gather(batches), self._input_schema)
        output = frames.Output(self.output_schema, self._settings)
        zone = self._settings.time_zone
        loop = KeyLoop(self._backend, {}, lambda column: frames.scalars_of(column, zone))
        if table.num_rows:
            keys = self._backend.keys(table)
            order = ascending(keys.columns)
            by_call = CallRows.of(inverse(order)[keys.codes], len(keys))
            given = frames.Input(table, by_call, self._settings)
            for call, key in enumerate(loop.keys(keys, order)):
                yield from output.add(self._call(key, given.of(call), has_timed_out=False))
            loop.end()
        expired = None if self._timeouts is None else self._timeouts.find_expired(self._backend)
        if expired is not None:
            make_empty = frames.empty_frames(table.column_names)
            for key in loop.keys(expired, ascending(expired.columns)):
                yield from output.add(self._call(key, [make_empty()], has_timed_out=True))
            loop.end()
        yield from output.flush()

    def _call(self, key: tuple[Any, ...], given: Any, *, has_timed_out: bool) -> Iterator[Any]:
        """Call the function for the current key, yield its frames, and then store its changes."""
        value = self._value.get()
        state = self._make_state(
            optionalValue=value, hasTimedOut=has_timed_out, defined=value is not None
        )
        results = self._function(key, given, state)
        yield from _checked_frames(results, len(self.output_schema))
        self._store(state, has_timed_out=has_timed_out)

    def _store(self, state: "TrackedGroupState", *, has_timed_out: bool) -> None:
        """Store the changes of a call, as Spark does: without a new timeout, a change of the value removes the old one."""
        value, at_ms = state.value, state.new_timeout
        if state.is_changed:
            if value is not None:
                self._value.update(value)
            elif state.is_removed:
                self._value.clear()
            if self._timeouts is not None:
                self._timeouts.set(at_ms)
        elif has_timed_out and self._timeouts is not None:
            self._timeouts.postpone()


class TrackedGroupState(GroupState):
    """Spark's `GroupState`, whose changes the operator can read."""

    @property
    def value(self) -> Any:
        """The value, or None."""
        return self._value if self._defined else None

    @property
    def new_timeout(self) -> int | None:
        """The timeout that was set, milliseconds; None if none was set. Raises `InvalidRequestError`."""
        at_ms = self._timeout_timestamp
        if at_ms == _NO_TIME:
            return None
        if not 0 < at_ms < MAX_INT64:
            raise InvalidRequestError(f"the timeout must be a time in 64 bits, got {at_ms} ms")
        return int(at_ms)  # Spark makes fractions of a `datetime`

    @property
    def is_removed(self) -> bool:
        """True if the value was removed."""
        return self._removed

    @property
    def is_changed(self) -> bool:
        """True if a value or a timeout was set, or the value was removed."""
        return self._updated or self._removed or self._timeout_timestamp != _NO_TIME


class Timeouts:
    """The timeouts of keys.

    Args:
        stored: The state `timeout`.
        timers: The timers of the operator.
        now_ms: The time that is compared with timeouts, milliseconds.
    """

    def __init__(self, stored: ValueState, timers: TimerService, now_ms: int) -> None:
        self._stored = stored
        self._timers = timers
        self._now_ms = now_ms

    def find_expired(self, backend: KeyedStateBackend) -> Keys | None:
        """Return the keys that have timed out; None if no key has."""
        # Timers of keys that have been called for their timeout may be at the next millisecond.
        due = self._timers.due(self._now_ms + 1)
        if not len(due):
            return None
        keys = backend.keys(due.key)
        at_ms = self._stored.columns.get(keys).field("at")
        chosen = np.flatnonzero(pc.less(at_ms, self._now_ms).to_numpy(zero_copy_only=False))
        return keys.take(chosen) if len(chosen) else None

    def set(self, at_ms: int | None) -> None:
        """Set the timeout of the current key; None removes it."""
        old = self._stored.value()
        new = None if at_ms is None else (at_ms, at_ms + 1)
        if new == old:
            return
        if old is not None:
            self._timers.delete(old[1])
        if new is not None:
            self._timers.register(new[1])
        self._stored.update(new)

    def postpone(self) -> None:
        """Let the current key time out again in the next batch."""
        at_ms, timer_ms = self._stored.value()
        if timer_ms <= self._now_ms:
            self._timers.delete(timer_ms)
            self._timers.register(self._now_ms + 1)
            self._stored.update((at_ms, self._now_ms + 1))


def _checked_frames(results: Any, width: int) -> Iterator[Any]:
    """Yield the frames that a function has returned, without empty ones. Raises Spark's errors for anything else."""
    from pandas import DataFrame  # noqa: PLC0415  # pandas is slow to import

    if isinstance(results, DataFrame) or not isinstance(results, Iterable):
        raise PySparkTypeError(
            "[UDF_RETURN_TYPE] Return type of the user-defined function should be an iterable of pandas.DataFrame, but "
            f"is {type(results).__name__}."
        )
    for frame in results:
        if not isinstance(frame, DataFrame):
            raise PySparkTypeError(
                "[UDF_RETURN_TYPE] Return type of the user-defined function should be an iterator of pandas.DataFrame, "
                f"but is an iterator of {type(frame).__name__}."
            )
        columns = len(frame.columns)
        if columns != width and (columns or len(frame)):
            raise PySparkRuntimeError(
                "[RESULT_COLUMN_SCHEMA_MISMATCH] Number of columns of the returned pandas.DataFrame doesn't match "
                f"specified schema. Expected: {width} Actual: {columns}."
            )
        if len(frame):
            yield frame
