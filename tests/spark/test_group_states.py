"""Functions of `applyInPandasWithState` in batches without Spark: what they get, and what they may return."""

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from jobs.group_states import Function, operator
from jobs.keyed import KeyedJob
from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    PySparkRuntimeError,
    PySparkTypeError,
)
from pyspark.sql import types as spark
from pyspark.sql.streaming.state import GroupState

from holdfast.errors import InvalidRequestError, StateMigrationError
from holdfast.spark.processors import InputSettings

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
PROCESSING, EVENT = "ProcessingTimeTimeout", "EventTimeTimeout"


def _job(
    directory: str,
    function: Function,
    timeout: str = "NoTimeout",
    *,
    schema: pa.Schema = SCHEMA,
    key: tuple[str, ...] = ("k",),
    **options: Any,
) -> KeyedJob:
    made = operator(timeout, function, **options)
    return KeyedJob(
        directory, made, schema=schema, key=key, output=made.arrow_schema, parallelism=1
    )


def _run(
    directory: str,
    function: Function,
    batch: Any,
    timeout: str = "NoTimeout",
    times: tuple[int, int] = (100, 90),
    **options: Any,
) -> list[str]:
    rows = _job(directory, function, timeout, **options).run(batch, times=times)
    return [row["out"] for row in rows]


def _out(value: Any) -> pd.DataFrame:
    return pd.DataFrame({"out": [value if isinstance(value, str) else repr(value)]})


def test_key_has_scalars_of_pandas_and_frames_all_columns(memory_directory: str) -> None:
    noon = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)
    columns: dict[str, tuple[pa.DataType, Any, Any]] = {
        "i": (pa.int32(), 1, np.int32(1)),
        "x": (pa.float64(), 0.5, np.float64(0.5)),
        "b": (pa.bool_(), True, np.True_),
        "s": (pa.string(), "a", "a"),
        "d": (pa.date32(), noon.date(), noon.date()),
        "t": (pa.timestamp("us", "UTC"), noon, pd.Timestamp("2024-07-01 14:00:00")),
        "n": (pa.decimal128(10, 2), Decimal("1.50"), Decimal("1.50")),
    }

    def call(key: Any, frames: Any, state: GroupState) -> Any:
        (frame,) = frames
        assert list(frame.columns) == list(columns)
        if key[0] == 1:
            assert key == tuple(value for _, _, value in columns.values())
        yield _out([type(value).__name__ for value in key])

    schema = pa.schema([(name, kind) for name, (kind, _, _) in columns.items()])
    given = [dict.fromkeys(columns), {name: value for name, (_, value, _) in columns.items()}]
    options = {"schema": schema, "key": tuple(columns), "settings": InputSettings("Europe/Berlin")}
    nulls = ["float64", "float64", "NoneType", "NoneType", "NoneType", "NaTType", "NoneType"]
    values = [type(value).__name__ for _, _, value in columns.values()]
    assert _run(memory_directory, call, given, **options) == [repr(nulls), repr(values)]


def test_types_of_numbers_depend_on_the_nulls_of_the_key(memory_directory: str) -> None:
    schema = pa.schema([("k", pa.string()), ("i", pa.int64()), ("b", pa.bool_())])

    def call(key: Any, frames: Any, state: GroupState) -> Any:
        (frame,) = frames
        yield _out([key[0], *(str(dtype) for dtype in frame.dtypes), frame["i"].tolist()])

    given = [
        {"k": "a", "i": 2**60 + 1, "b": True},
        {"k": "b", "i": None, "b": True},
        {"k": "c", "i": 7, "b": None},
        {"k": "b", "i": 3, "b": False},
    ]
    assert _run(memory_directory, call, given, schema=schema) == [
        repr(["a", "object", "int64", "bool", [2**60 + 1]]),
        repr(["b", "object", "float64", "bool", [float("nan"), 3.0]]),
        repr(["c", "object", "int64", "object", [7]]),
    ]


def test_rows_of_a_key_are_cut_into_frames(memory_directory: str) -> None:
    def call(key: Any, frames: Any, state: GroupState) -> Any:
        yield _out([frame["v"].tolist() for frame in frames])

    given = [{"k": "a", "v": number} for number in range(5)]
    settings = InputSettings(max_rows=2)
    assert _run(memory_directory, call, given, settings=settings) == ["[[0, 1], [2, 3], [4]]"]


def test_frame_of_a_timeout_is_a_list_with_an_empty_frame(memory_directory: str) -> None:
    def call(key: Any, frames: Any, state: GroupState) -> Any:
        if state.hasTimedOut:
            (frame,) = frames
            assert len(frames) == 1
            yield _out([key[0], list(frame.columns), len(frame), state.exists])
        else:
            state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 5)  # without a value

    job = _job(memory_directory, call, EVENT)
    assert job.run([{"k": "a", "v": 1}], times=(0, 90)) == []
    assert job.run(times=(0, 95)) == []  # the watermark has to pass the timeout
    assert [row["out"] for row in job.run(times=(0, 96))] == ["['a', ['k', 'v'], 0, False]"]


@pytest.mark.parametrize("timeout", [PROCESSING, EVENT])
def test_timeout_call_without_changes_repeats_in_the_next_batch(
    memory_directory: str, timeout: str
) -> None:
    def call(key: Any, frames: Any, state: GroupState) -> Any:
        if state.hasTimedOut:
            yield _out("timed out")
        elif timeout == PROCESSING:
            state.setTimeoutDuration(5)
        else:
            state.setTimeoutTimestamp(105)

    job = _job(memory_directory, call, timeout)
    domain = 1 if timeout == PROCESSING else 0
    assert job.run([{"k": "a", "v": 1}], times=(100, 100)) == []
    assert job.next_timers[0][domain] == 106
    for now in (106, 106, 107, 200):
        assert job.run(times=(now, now)) == [{"out": "timed out"}]
        assert job.next_timers[0][domain] == now + 1


def test_failed_call_leaves_the_state_of_the_checkpoint(memory_directory: str) -> None:
    def call(key: Any, frames: Any, state: GroupState) -> Any:
        before = state.getOption
        state.update(((before or (0,))[0] + 1, None))
        for frame in frames:
            if (frame["v"] < 0).any():
                raise ValueError("a negative value")
        yield _out(before)

    given = [{"k": "a", "v": 1}]
    assert _run(memory_directory, call, given) == ["None"]
    with pytest.raises(ValueError, match="a negative value"):
        _run(memory_directory, call, [*given, {"k": "b", "v": -1}])
    assert _run(memory_directory, call, [*given, {"k": "b", "v": 1}]) == ["(1, None)", "None"]


def test_values_of_numpy_and_pandas_become_those_of_python(memory_directory: str) -> None:
    schema = spark.StructType(
        [
            spark.StructField("n", spark.LongType()),
            spark.StructField("at", spark.TimestampNTZType()),
            spark.StructField("all", spark.ArrayType(spark.LongType())),
        ]
    )

    def call(key: Any, frames: Any, state: GroupState) -> Any:
        if not state.exists:
            state.update((np.int64(3), pd.Timestamp(2024, 1, 1), [1]))
        else:
            state.get[2].append(2)  # changes nothing that is stored
        yield _out(state.get)

    given = [{"k": "a", "v": 1}]
    midnight = pd.Timestamp(2024, 1, 1).to_pydatetime()
    first = repr((3, midnight, [1]))
    assert _run(memory_directory, call, given, state_schema=schema) == [first]
    second = repr((3, midnight, [1, 2]))
    for _ in range(2):
        assert _run(memory_directory, call, given, state_schema=schema) == [second]


def test_value_of_another_type_is_refused(memory_directory: str) -> None:
    def call(key: Any, frames: Any, state: GroupState) -> Any:
        state.update(("not a number", "x"))
        yield _out("")

    with pytest.raises(InvalidRequestError, match="state 'state'"):
        _run(memory_directory, call, [{"k": "a", "v": 1}])


def test_watermark_of_rows_without_one_is_refused(memory_directory: str) -> None:
    def call(key: Any, frames: Any, state: GroupState) -> Any:
        yield _out(state.getCurrentProcessingTimeMs())
        state.getCurrentWatermarkMs()

    with pytest.raises(PySparkRuntimeError, match="watermark"):
        _run(memory_directory, call, [{"k": "a", "v": 1}], has_watermark=False)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (_out("a"), PySparkTypeError, r"an iterable of pandas\.DataFrame, but is DataFrame"),
        (None, PySparkTypeError, r"an iterable of pandas\.DataFrame, but is NoneType"),
        ([("a",)], PySparkTypeError, "an iterator of tuple"),
        ([pd.DataFrame({"a": [1], "b": [2]})], PySparkRuntimeError, "Expected: 1 Actual: 2"),
        ([pd.DataFrame({"a": [], "b": []})], PySparkRuntimeError, "Expected: 1 Actual: 2"),
    ],
    ids=["a frame", "nothing", "a tuple", "two columns", "two columns without rows"],
)
def test_other_results_are_refused(
    memory_directory: str, given: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        _run(memory_directory, lambda *_: given, [{"k": "a", "v": 1}])


def test_empty_results_are_left_out(memory_directory: str) -> None:
    empty = [pd.DataFrame(), pd.DataFrame({"other": []}), _out("a")]
    assert _run(memory_directory, lambda *_: iter(empty), [{"k": "a", "v": 1}]) == ["a"]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"output_mode": "complete"}, AnalysisException, "applyInPandasWithState"),
        ({"output_mode": "other"}, IllegalArgumentException, "other"),
        ({"timeout": "Later"}, InvalidRequestError, "timeoutConf must be one of"),
        ({"function": "f"}, InvalidRequestError, "func must be a function"),
        ({"state_schema": spark.LongType()}, InvalidRequestError, "state schema must be a struct"),
    ],
    ids=["complete", "mode", "timeout", "function", "state"],
)
def test_bad_arguments_are_refused(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    arguments: dict[str, Any] = {"timeout": "NoTimeout", "function": lambda *_: [], **change}
    with pytest.raises(error, match=message):
        operator(**arguments)


def test_other_timeout_is_refused_while_keys_have_timeouts(memory_directory: str) -> None:
    def call(key: Any, frames: Any, state: GroupState) -> Any:
        state.setTimeoutTimestamp(1000)
        return []

    assert _run(memory_directory, call, [{"k": "a", "v": 1}], EVENT) == []
    with pytest.raises(StateMigrationError, match="has timers of 'eventtime'"):
        _run(memory_directory, call, [{"k": "a", "v": 1}], PROCESSING)
