"""A function for `applyInPandasWithState` that runs the script in its rows, and Spark's operator in plain Python."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from pyspark.errors import PySparkException
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.types import LongType, StringType, StructField, StructType

from holdfast.spark.processors import GroupStateFunction, InputSettings

OUT = StructType([StructField("out", StringType())])
STATE = StructType([StructField("n", LongType()), StructField("s", StringType())])
OPERATIONS = "uuuurttttTng"

Function = Callable[..., Iterator[pd.DataFrame]]


def run_script(timeout: str) -> Function:
    """Return a function that runs the operations in the column `ops` of its rows, and yields what it sees.

    When a key times out, what it does depends on the value of the key.
    """

    def call(key: tuple[Any, ...], given: Any, state: GroupState) -> Iterator[pd.DataFrame]:
        frames = list(given)
        seen = [(list(frame.columns), frame["ops"].tolist()) for frame in frames]
        yield _observation(("call", type(key[0]).__name__, seen), key, state)
        script = " ".join(text for _, rows in seen for text in rows).split()
        if state.hasTimedOut:
            script = on_timeout(state.get[0] if state.exists else len(key[0] or ""))
        for operation in script:
            error = None
            try:
                _do(operation[0], int(operation[1:]), state, timeout)
            except PySparkException as raised:
                error = str(raised)
            yield _observation((operation, error), key, state)

    return call


def _do(name: str, number: int, state: GroupState, timeout: str) -> None:
    match name:
        case "u":
            state.update((number, str(number)))
        case "r":
            state.remove()
        case "t" if timeout == "ProcessingTimeTimeout":
            state.setTimeoutDuration(number)
        case "t" if timeout == "EventTimeTimeout":
            state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + number)
        case "T":
            state.setTimeoutTimestamp(number)
        case "n":
            state.update(None)  # type: ignore[arg-type]  # refused
        case "g":
            assert state.get


def on_timeout(number: int) -> list[str]:
    """Return the operations of a call for a timeout."""
    return [[], ["u1"], ["r0"], ["t9"], ["u4", "t5"], ["r0", "t20"], ["u0"]][number % 7]


def _observation(event: Any, key: tuple[Any, ...], state: GroupState) -> pd.DataFrame:
    times = (
        state.getCurrentProcessingTimeMs(),
        state.getCurrentWatermarkMs(),
        state.oldTimeoutTimestamp,
    )
    seen = (event, key[0], state.hasTimedOut, state.exists, state.getOption, times)
    return pd.DataFrame({"out": [repr(seen)]})


def operator(timeout: str, function: Function | None = None, **options: Any) -> GroupStateFunction:
    """Return the operator of a function, by default `run_script`, for rows with a watermark."""
    arguments = {"output_schema": OUT, "state_schema": STATE, "output_mode": "update", **options}
    arguments = {"has_watermark": True, "settings": InputSettings(), **arguments}
    return GroupStateFunction(function or run_script(timeout), timeout=timeout, **arguments)


class Model:
    """Spark's operator with the scripted function, after `FlatMapGroupsInPandasWithStateExec`."""

    def __init__(self, timeout: str) -> None:
        self._timeout = timeout
        self._function = run_script(timeout)
        self._stored: dict[str | None, tuple[tuple[Any, ...] | None, int]] = {}
        self._seen: list[str] = []

    def run(self, rows: Sequence[Mapping[str, Any]], batch_time: int, watermark: int) -> list[str]:
        """Return the output of a batch: of its keys with rows, then of those that time out, both ascending."""
        self._seen = []
        columns = list(rows[0]) if rows else ["k", "ops"]
        for key in _ascending({row["k"] for row in rows}):
            frame = pd.DataFrame([row for row in rows if row["k"] == key], columns=columns)
            self._call(key, frame, batch_time, watermark, has_timed_out=False)
        now = {"ProcessingTimeTimeout": batch_time, "EventTimeTimeout": watermark}.get(
            self._timeout, 0
        )
        due = {key for key, (_, timeout) in self._stored.items() if 0 < timeout < now}
        for key in _ascending(due):
            empty = pd.DataFrame(columns=columns)
            self._call(key, empty, batch_time, watermark, has_timed_out=True)
        return self._seen

    def _call(
        self, key: str | None, frame: Any, batch_time: int, watermark: int, *, has_timed_out: bool
    ) -> None:
        value, _ = self._stored.get(key, (None, -1))
        state: Any = GroupState(
            optionalValue=value,  # type: ignore[arg-type]  # PySpark's annotation leaves out None
            batchProcessingTimeMs=batch_time,
            eventTimeWatermarkMs=watermark,
            timeoutConf=self._timeout,
            hasTimedOut=has_timed_out,
            watermarkPresent=True,
            defined=value is not None,
            updated=False,
            removed=False,
            timeoutTimestamp=-1,
            keyAsUnsafe=b"",
            valueSchema=STATE,
        )
        for output in self._function((key,), [frame], state):
            self._seen += output["out"].tolist()
        left = json.loads(state.json())
        timeout = left["timeoutTimestamp"]
        if left["removed"] and timeout == -1:
            self._stored.pop(key, None)
        elif left["updated"] or left["removed"] or timeout != -1:
            self._stored[key] = state.getOption, timeout


def _ascending(keys: set[str | None]) -> list[str | None]:
    return sorted(keys, key=lambda key: (key is not None, key or ""))
