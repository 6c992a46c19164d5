"""Processors of PySpark in batches without Spark's JVM, and a processor that calls given functions."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from jobs.keyed import KeyedJob
from jobs.stateful_processor import StatefulProcessor
from pyspark.sql import Row
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from holdfast.spark.processors import Flavour, InputSettings, ProcessorFunction

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
ROWS = [{"k": "a", "v": 1}]
OUT = StructType([StructField("out", StringType())])

NUMBER = StructType([StructField("n", IntegerType())])
NUMBER_AND_TEXT = StructType([StructField("n", IntegerType()), StructField("s", StringType())])
TEXT = StructType([StructField("k", StringType())])


class CallbackProcessor(StatefulProcessor):
    """Calls the given functions, and yields the `repr` of each of their results.

    Args:
        init: Declares states, which become the attribute `states`.
        rows: Called for a key with the processor, its states, the key and its rows.
        timer: The same for a timer, with its time instead of rows.
        initial: The same for initial state.
    """

    def __init__(
        self,
        init: Callable[[Any], Any] = lambda _: None,
        rows: Callable[..., Any] = lambda *_: [],
        timer: Callable[..., Any] = lambda *_: [],
        initial: Callable[..., Any] = lambda *_: None,
    ) -> None:
        self._init, self._rows, self._timer, self._initial = init, rows, timer, initial
        self.handle: Any = None
        self.states: Any = None
        self.times: Any = None

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.states = self._init(handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        self.times = timerValues
        for result in self._rows(self, self.states, key, rows) or ():
            yield Row(out=repr(result))

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        self.times = timerValues
        for result in (
            self._timer(self, self.states, key, expiredTimerInfo.getExpiryTimeInMs()) or ()
        ):
            yield Row(out=repr(result))

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.times = timerValues
        self._initial(self, self.states, key, initialState)


def processor_job(
    directory: str,
    processor: StatefulProcessor,
    *,
    schema: pa.Schema = SCHEMA,
    output: StructType = OUT,
    key: Sequence[str] = ("k",),
    time_mode: str = "None",
    flavour: Flavour = "row",
    settings: InputSettings | None = None,
    parallelism: int = 1,
) -> KeyedJob:
    """Return the processor as a job that resumes from the checkpoints in the directory."""
    function = ProcessorFunction(
        processor, output, "Update", time_mode, flavour=flavour, settings=settings
    )
    return KeyedJob(
        directory,
        function,
        schema=schema,
        key=key,
        output=function.arrow_schema,
        parallelism=parallelism,
    )


def run_callbacks(
    directory: str,
    init: Callable[[Any], Any] = lambda _: None,
    rows: Callable[..., Any] = lambda *_: [],
    *,
    timer: Callable[..., Any] = lambda *_: [],
    batch: Sequence[Mapping[str, Any]] = ROWS,
    times: tuple[int, int] = (0, 0),
    **options: Any,
) -> list[Any]:
    """Run a batch of a job with a new `CallbackProcessor`, and return the results of its functions."""
    job = processor_job(directory, CallbackProcessor(init, rows, timer), **options)
    return outputs(job.run(batch, times=times))


def number_state(handle: Any) -> Any:
    """Declare a value state `v` of a number."""
    return handle.getValueState("v", NUMBER)


def outputs(rows: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Return the results of a `CallbackProcessor`'s functions."""
    return [eval(row["out"], {"Row": Row}) for row in rows]  # written by `CallbackProcessor`
