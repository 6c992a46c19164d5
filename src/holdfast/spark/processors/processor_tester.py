"""Tests of processors without a stream: key by key, with times that the test sets, over real state."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.errors import IllegalArgumentException, PySparkAssertionError, PySparkValueError
from pyspark.sql import Row

from holdfast.backends.arrow import objects_of
from holdfast.backends.keyed import ColumnarStateTables, KeyedStateBackend
from holdfast.backends.keys import KeyGroupRange
from holdfast.errors import InvalidRequestError
from holdfast.spark.compat import StatefulProcessor
from holdfast.spark.processors.declarations import check_output_mode, parse_time_mode
from holdfast.spark.processors.handle import Variable
from holdfast.spark.processors.processor_function import ProcessorRun, record_declarations

_GROUPS = 128


class ProcessorTester:
    """Tests a `StatefulProcessor` of PySpark, with the methods of Spark's own `TwsTester`, which PySpark 4.1 hasn't.

    Spark's tester keeps values in dictionaries; this one has the same state as processors on Holdfast: it checks schemas,
    applies times to live, and refuses what Spark refuses. Each call is a micro-batch with a new copy of the
    processor, so values that it keeps outside of its state are lost with the next call, as in a query.

    Processors get the rows of the test as they are; these need not have the key's column. A key is a value, or a tuple if it
    has several columns; all keys have the types of the first one. Schemas as DDL strings need an active session. There is
    no `handle`: states and timers are those of the processor.

    Args:
        processor: The processor; only copies of it are used.
        initialStateRow: Initial state, pairs of a key and a row.
        initialStatePandas: The same for processors of pandas, pairs of a key and a frame.
        timeMode: None, ProcessingTime or EventTime.
        outputMode: Append or Update.
        eventTimeExtractor: Returns the event time of a row in milliseconds, for time mode EventTime: rows at or before
            the watermark are late and dropped.
        keyColumns: The names of the key's columns, which timers see.

    Raises:
        StatefulProcessorError: Spark refuses a declaration of the processor, too.
        PySparkValueError: The time mode is EventTime, and there is no `eventTimeExtractor`.
        AssertionError: Both `initialStateRow` and `initialStatePandas` are given.
    """

    def __init__(  # noqa: PLR0917  # Spark's
        self,
        processor: StatefulProcessor,
        initialStateRow: Iterable[tuple[Any, Row]] | None = None,  # Spark's names
        initialStatePandas: Iterable[tuple[Any, Any]] | None = None,
        timeMode: str = "None",
        outputMode: str = "Append",
        eventTimeExtractor: Callable[[Any], int] | None = None,
        *,
        keyColumns: Sequence[str] = ("key",),
    ) -> None:
        check_output_mode(outputMode)
        self._mode = parse_time_mode(timeMode)
        self._event_time = eventTimeExtractor
        if self._mode == "eventtime" and eventTimeExtractor is None:
            parameters = {"arg_name": "eventTimeExtractor", "condition": "timeMode is EventTime"}
            # By position, because PySpark 3.5 has other names for the arguments.
            raise PySparkValueError(None, "ARGUMENT_REQUIRED", parameters)
        if initialStateRow is not None and initialStatePandas is not None:
            message = "initialStateRow and initialStatePandas are given; a processor takes only one of them"
            raise AssertionError(message)  # Spark's class
        self._columns = list(keyColumns)
        self._pickled: bytes = cloudpickle.dumps(processor)  # type: ignore[no-untyped-call]
        self._declared, self._schemas = record_declarations(
            cloudpickle.loads(self._pickled), self._mode
        )
        self._backend: KeyedStateBackend | None = None
        self._processing_time_ms = 0
        self._watermark_ms = 0
        self._uses_pandas = initialStatePandas is not None
        for key, state in initialStateRow or initialStatePandas or ():
            with self._current(key) as run:
                run.initial_state(_parts(key), [state])

    def test(self, key: Any, input: list[Row]) -> list[Row]:
        """Process rows of a key, and return those of the processor; timers don't fire."""
        self._uses_pandas = False
        rows = input
        if self._mode == "eventtime" and self._event_time is not None:
            rows = [row for row in input if self._event_time(row) > self._watermark_ms]
        if input and not rows:
            return []  # Spark doesn't call a processor for a key with only late rows
        with self._current(key) as run:
            return list(run.input_rows(_parts(key), iter(rows)))

    def testInPandas(self, key: Any, input: Any) -> Any:
        """Process a frame of a key, and return a frame; for processors of pandas."""
        self._uses_pandas = True
        frame = input
        if self._mode == "eventtime" and len(frame):
            times = frame.apply(self._event_time, axis=1)
            frame = frame[times > self._watermark_ms].reset_index(drop=True)
            if not len(frame):
                return self._output([])
        with self._current(key) as run:
            return self._output(list(run.input_rows(_parts(key), iter([frame]))))

    def setProcessingTime(self, currentTimeMs: int) -> Any:
        """Advance the processing time, fire timers, and return the rows or the frame of the processor.

        Raises:
            PySparkValueError: The time mode is another one.
            IllegalArgumentException: The time doesn't move forward.
        """
        self._check_mode("setProcessingTime", "ProcessingTime")
        _check_forward("Processing time", self._processing_time_ms, currentTimeMs)
        self._processing_time_ms = currentTimeMs
        return self._fire()

    def setWatermark(self, currentWatermarkMs: int) -> Any:
        """Advance the watermark, and fire timers. Results and errors are those of `setProcessingTime`."""
        self._check_mode("setWatermark", "EventTime")
        _check_forward("Watermark", self._watermark_ms, currentWatermarkMs)
        self._watermark_ms = currentWatermarkMs
        return self._fire()

    def updateValueState(self, stateName: str, key: Any, value: tuple[Any, ...]) -> None:
        """Set the value of a key."""
        with self._variable("value", stateName, key) as state:
            state.update(value)

    def peekValueState(self, stateName: str, key: Any) -> tuple[Any, ...] | None:
        """Return the value of a key, or None."""
        with self._variable("value", stateName, key) as state:
            value: tuple[Any, ...] | None = state.get()
            return value

    def updateListState(self, stateName: str, key: Any, value: list[tuple[Any, ...]]) -> None:
        """Set the list of a key."""
        with self._variable("list", stateName, key) as state:
            state.put(value) if value else state.clear()

    def peekListState(self, stateName: str, key: Any) -> list[tuple[Any, ...]]:
        """Return the list of a key."""
        with self._variable("list", stateName, key) as state:
            return list(state.get())

    def updateMapState(self, stateName: str, key: Any, value: dict[Any, Any]) -> None:
        """Set the map of a key."""
        with self._variable("map", stateName, key) as state:
            state.clear()
            for map_key, each in value.items():
                state.updateValue(map_key, each)

    def peekMapState(self, stateName: str, key: Any) -> dict[Any, Any]:
        """Return the map of a key."""
        with self._variable("map", stateName, key) as state:
            return dict(state.iterator())

    def deleteState(self, stateName: str, key: Any) -> None:
        """Clear the state of a key. Raises `PySparkAssertionError` if there is no such state."""
        kinds = {each.name: each.kind for each in self._declared.variables}
        if stateName not in kinds:
            raise PySparkAssertionError(None, "STATE_NOT_EXISTS", {})
        with self._variable(kinds[stateName], stateName, key) as state:
            state.clear()

    @contextmanager
    def _batch(self, backend: KeyedStateBackend) -> Iterator[ProcessorRun]:
        """Run a micro-batch."""
        backend.advance_time(self._processing_time_ms)
        run = ProcessorRun(
            cloudpickle.loads(self._pickled),
            backend,
            self._declared,
            self._schemas,
            time_mode=self._mode,
            batch_time=self._processing_time_ms,
            watermark=self._watermark_ms,
            key_values=objects_of,
        )
        try:
            run.open()
            yield run
            run.close()
        except BaseException:
            backend.discard_batch()
            raise

    @contextmanager
    def _current(self, key: Any) -> Iterator[ProcessorRun]:
        """Run a micro-batch with a current key."""
        parts = _parts(key)
        backend = self._backend_of(parts)
        columns = [
            _column(part, field.type) for part, field in zip(parts, backend.key, strict=True)
        ]
        with self._batch(backend) as run:
            for _ in run.keys(backend.keys(columns)):
                yield run

    @contextmanager
    def _variable(self, kind: str, name: str, key: Any) -> Iterator[Any]:
        """Run a micro-batch with a current key, for one of its state variables."""
        if not any(each.name == name and each.kind == kind for each in self._declared.variables):
            raise AssertionError(f"State {name} has not been initialized.")
        with self._current(key) as run:
            variable: Variable = run.handle.variables[name]
            yield variable

    def _fire(self) -> Any:
        if self._backend is None:
            return self._output([])
        with self._batch(self._backend) as run:
            return self._output(list(run.expired_timers()))

    def _output(self, given: list[Any]) -> Any:
        if not self._uses_pandas:
            return given
        import pandas as pd  # noqa: PLC0415  # only for processors of pandas

        return pd.concat(given, ignore_index=True) if given else pd.DataFrame()

    def _backend_of(self, parts: tuple[Any, ...]) -> KeyedStateBackend:
        """Return the states; the first key decides on the types of keys."""
        if self._backend is None:
            names = self._columns
            if len(names) != len(parts):
                names = [f"{names[0]}_{number}" for number in range(1, len(parts) + 1)]
            types = [pa.string() if part is None else pa.array([part]).type for part in parts]
            groups = KeyGroupRange(0, _GROUPS - 1)
            key = pa.schema(list(zip(names, types, strict=True)))
            self._backend = KeyedStateBackend(ColumnarStateTables(groups), key, _GROUPS, groups)
        if len(parts) != len(self._backend.key):
            message = f"the first key had {len(self._backend.key)} columns, got {parts!r}"
            raise InvalidRequestError(message)
        return self._backend

    def _check_mode(self, operation: str, mode: str) -> None:
        if self._mode != mode.lower():
            parameters = {"operation": f"{operation} with TimeMode other than {mode}"}
            raise PySparkValueError(None, "UNSUPPORTED_OPERATION", parameters)


def _check_forward(clock: str, current_ms: int, provided_ms: int) -> None:
    if provided_ms <= current_ms:
        raise IllegalArgumentException(
            f"{clock} must move forward. Current: {current_ms} ms, provided: {provided_ms} ms."
        )


def _parts(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


def _column(part: Any, kind: pa.DataType) -> pa.Array:
    try:
        return pa.array([part], kind)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidRequestError(f"the first key was of type {kind}, got {part!r}") from error
