"""Processors of the pandas flavour: the frames that they take and yield."""

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from jobs.processor_jobs import NUMBER, processor_job
from jobs.stateful_processor import StatefulProcessor
from pyspark.errors import PySparkValueError
from pyspark.sql import Row
from pyspark.sql import types as spark

from holdfast.errors import InvalidRequestError
from holdfast.spark.processors import InputSettings
from holdfast.spark.processors.frames import column_values, part_of_frame

OUT = spark.StructType(
    [spark.StructField("k", spark.StringType()), spark.StructField("n", spark.LongType())]
)


class FrameProcessor(StatefulProcessor):
    """Calls the given functions with the frames of a key."""

    def __init__(self, rows: Callable[..., Any], timer: Any = None) -> None:
        self._rows, self._timer = rows, timer
        self.handle: Any = None
        self.v: Any = None

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.v = handle.getValueState("v", NUMBER)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        return self._rows(self, key, rows)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        return self._timer(self, key)

    def close(self) -> None:
        pass


def _frame(k: Any, n: Any) -> pd.DataFrame:
    return pd.DataFrame({"k": [k], "n": [n]})


def _run(directory: str, rows: Any, batch: Any, **settings: Any) -> list[dict[str, Any]]:
    job = processor_job(directory, FrameProcessor(rows), output=OUT, flavour="pandas", **settings)
    return job.run(batch)


def test_running_count_of_frames(memory_directory: str) -> None:
    def rows(p: Any, key: Any, frames: Any) -> Any:
        count = sum(len(frame) for frame in frames) + (p.v.get() or (0,))[0]
        p.v.update((count,))
        p.handle.registerTimer(5)
        yield _frame(key[0], count)

    def timer(p: Any, key: Any) -> Any:
        yield _frame(key.k, -p.v.get()[0])

    job = processor_job(
        memory_directory,
        FrameProcessor(rows, timer),
        output=OUT,
        flavour="pandas",
        time_mode="EventTime",
    )
    given = [{"k": key, "v": 1} for key in "abacab"]
    assert [tuple(row.values()) for row in job.run(given)] == [("a", 3), ("b", 2), ("c", 1)]
    assert [tuple(row.values()) for row in job.run(given, times=(0, 9))] == [
        ("a", 6),
        ("b", 4),
        ("c", 2),
        ("a", -6),
        ("b", -4),
        ("c", -2),
    ]


@pytest.mark.parametrize(
    ("settings", "lengths"),
    [
        (InputSettings(max_rows=2), [2, 2, 1]),
        (InputSettings(max_rows=0), [5]),
        (InputSettings(max_bytes=1), [1, 1, 1, 1, 1]),
        (InputSettings(), [5]),
    ],
)
def test_rows_of_a_key_are_split_into_frames_as_in_spark(
    memory_directory: str, settings: InputSettings, lengths: list[int]
) -> None:
    def rows(_: Any, key: Any, frames: Any) -> Any:
        seen = list(frames)
        assert all(list(frame.index) == list(range(len(frame))) for frame in seen)
        assert [v for frame in seen for v in frame["v"]] == list(range(5))
        yield pd.DataFrame({"k": key[0], "n": [len(frame) for frame in seen]})

    given = [{"k": "a", "v": number} for number in range(5)]
    result = _run(memory_directory, rows, given, settings=settings)
    assert [row["n"] for row in result] == lengths


def test_processor_may_change_its_frames(memory_directory: str) -> None:
    def rows(_: Any, key: Any, frames: Any) -> Any:
        for frame in frames:
            frame["v"] = frame["v"] + 1
            frame.loc[0, "v"] = 100
            yield _frame(key[0], int(frame["v"].sum()))

    given = [{"k": key, "v": number} for number, key in enumerate("ababb")]
    assert [row["n"] for row in _run(memory_directory, rows, given)] == [103, 109]


def test_columns_have_the_pandas_types_of_spark(memory_directory: str) -> None:
    noon = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)
    schema = pa.schema(
        [
            ("k", pa.string()),
            ("i", pa.int32()),
            ("x", pa.float64()),
            ("b", pa.bool_()),
            ("d", pa.date32()),
            ("ts", pa.timestamp("us", "UTC")),
            ("ntz", pa.timestamp("us")),
            ("dec", pa.decimal128(10, 2)),
            ("arr", pa.list_(pa.int64())),
            ("st", pa.struct([("a", pa.int64())])),
            ("m", pa.map_(pa.string(), pa.int64())),
        ]
    )
    full = {
        "k": "a",
        "i": 1,
        "x": 0.5,
        "b": True,
        "d": noon.date(),
        "ts": noon,
        "ntz": noon.replace(tzinfo=None),
        "dec": Decimal("1.50"),
        "arr": [1, 2],
        "st": {"a": 1},
        "m": [("x", 1)],
    }

    def rows(_: Any, key: Any, frames: Any) -> Any:
        (frame,) = frames
        first, second = frame.to_dict("records")
        assert list(frame.columns) == schema.names
        assert [str(frame[name].dtype) for name in ("ts", "ntz")] == ["datetime64[ns]"] * 2
        assert list(first.pop("arr")) == [1, 2]
        assert first == {
            **{name: full[name] for name in ("k", "i", "x", "b", "d", "ntz", "dec", "st")},
            "ts": pd.Timestamp("2024-07-01 14:00:00"),
            "m": {"x": 1},
        }
        assert all(pd.isna(second[name]) for name in schema.names if name != "k")
        yield _frame(key[0], 1)

    empty = {**dict.fromkeys(schema.names), "k": "a"}
    settings = InputSettings("Europe/Berlin")
    assert len(_run(memory_directory, rows, [full, empty], schema=schema, settings=settings)) == 1


def test_nested_integers_stay_integers_next_to_nulls(memory_directory: str) -> None:
    """Otherwise it would depend on nulls of other keys whether a state of integers accepts a value."""
    nested = {
        "arr": pa.list_(pa.int64()),
        "st": pa.struct([("a", pa.int32())]),
        "m": pa.map_(pa.string(), pa.int64()),
    }
    schema = pa.schema([("k", pa.string()), *nested.items()])

    def rows(_: Any, key: Any, frames: Any) -> Any:
        (row,) = next(frames).to_dict("records")
        yield _frame(key[0] + repr((list(row["arr"]), row["st"], row["m"])), None)

    full = {"k": "a", "arr": [2**60 + 1, 2], "st": {"a": 1}, "m": [("x", 2**60 + 1)]}
    nulls = {"k": "b", "arr": [None, 2], "st": {"a": None}, "m": [("x", None), ("y", 3)]}
    assert [row["k"] for row in _run(memory_directory, rows, [full, nulls], schema=schema)] == [
        f"a([{2**60 + 1}, 2], {{'a': 1}}, {{'x': {2**60 + 1}}})",
        "b([None, 2], {'a': None}, {'x': None, 'y': 3})",
    ]


def test_null_key_is_one_key_and_nan_as_in_pandas(memory_directory: str) -> None:
    schema = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us", "UTC"))])
    seen = []

    def rows(_: Any, key: Any, frames: Any) -> Any:
        assert isinstance(key[1], pd.Timestamp) or key[1] is pd.NaT
        yield _frame(str(key[0]), sum(map(len, frames)))

    times = [None, dt.datetime(2024, 1, 1, tzinfo=dt.UTC)]
    given = [{"k": k, "t": t} for k in (None, 7) for t in times for _ in range(2)]
    seen = _run(memory_directory, rows, given, schema=schema, key=("k", "t"))
    assert [tuple(row.values()) for row in seen] == [("nan", 2), ("nan", 2), ("7", 2), ("7", 2)]


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (pd.DataFrame({"n": [1], "k": ["a"], "x": [0]}), [("a", 1)]),
        (pd.DataFrame([["a", 1]]), [("a", 1)]),
        (pd.DataFrame(), []),
        (pd.DataFrame({"k": [], "n": []}), []),
        (pd.DataFrame({"k": ["a"], "n": ["7"]}), [("a", 7)]),
        (pd.DataFrame({"k": ["a", None], "n": [1.0, float("nan")]}), [("a", 1), (None, None)]),
        (pd.DataFrame({"k": pd.Categorical(["a"]), "n": pd.array([None], "Int64")}), [("a", None)]),
        (pd.DataFrame({"k": ["a"], "n": np.array([1], np.int8)}), [("a", 1)]),
    ],
    ids=["by name", "by position", "empty", "no rows", "text", "nan", "extension", "small"],
)
def test_output_frames_are_converted_as_in_spark(
    memory_directory: str, frame: pd.DataFrame, expected: list[Any]
) -> None:
    result = _run(memory_directory, lambda *_: [frame], [{"k": "a", "v": 1}])
    assert [tuple(row.values()) for row in result] == expected


def test_frames_of_different_types_stay_in_order(memory_directory: str) -> None:
    def rows(_: Any, key: Any, frames: Any) -> Any:
        yield _frame("a", 1)
        yield _frame("b", 2.0)
        yield _frame("c", None)
        yield _frame("d", 4)

    result = _run(memory_directory, rows, [{"k": "a", "v": 1}])
    assert [tuple(row.values()) for row in result] == [("a", 1), ("b", 2), ("c", None), ("d", 4)]


def test_frame_is_copied_when_it_is_yielded(memory_directory: str) -> None:
    def rows(_: Any, key: Any, frames: Any) -> Any:
        frame = _frame(key[0], 1)
        for number in (1, 2):
            frame.loc[0, "n"] = number
            yield frame
        frame.loc[0, "n"] = 3

    result = _run(memory_directory, rows, [{"k": "a", "v": 1}])
    assert [row["n"] for row in result] == [1, 2]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (pd.DataFrame({"k": ["a"], "n": [1]}), Exception),
        ([pd.DataFrame({"k": ["a"]})], KeyError),
        ([pd.DataFrame({"k": ["a"], "n": [1.5]})], PySparkValueError),
        ([Row(k="a", n=1)], PySparkValueError),
        ([pd.Series([1])], PySparkValueError),
        ([pd.DataFrame([["a", 1, 2]], columns=["k", "n", "n"])], InvalidRequestError),
        (None, TypeError),
    ],
    ids=["a frame", "column missing", "truncated", "a row", "a series", "column twice", "nothing"],
)
def test_bad_output_frames_are_refused(
    memory_directory: str, given: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        _run(memory_directory, lambda *_: given, [{"k": "a", "v": 1}])


def test_integers_become_decimals_if_the_session_allows_it(memory_directory: str) -> None:
    price = spark.StructType([spark.StructField("price", spark.DecimalType(10, 2))])
    frame = pd.DataFrame({"price": pd.array([12, None], "Int64")})

    def prices(settings: InputSettings) -> Any:
        processor = FrameProcessor(lambda *_: [frame])
        job = processor_job(
            memory_directory, processor, output=price, flavour="pandas", settings=settings
        )
        return [row["price"] for row in job.run([{"k": "a", "v": 1}])]

    assert prices(InputSettings(integers_as_decimals=True)) == [Decimal("12.00"), None]
    with pytest.raises(
        PySparkValueError, match="Failed to convert the value of the column 'price'"
    ):
        prices(InputSettings())


# Parts and column values of frames, by internals and by public methods of pandas


def frame() -> pd.DataFrame:
    """Return a frame with columns of all storage layouts of pandas."""
    times = pd.date_range("2024-01-01", periods=6, freq="h")
    columns: dict[str, Any] = {
        "i": np.arange(6),
        "j": np.arange(6) * 10,
        "x": np.arange(6) / 4,
        "text": list("abcdef"),
        "list": [[n] for n in range(6)],
        "naive": times,
        "aware": times.tz_localize("Europe/Berlin"),
        "ext": pd.array([1, None, 3, 4, None, 6], "Int64"),
        "category": pd.Categorical(list("ababab")),
    }
    return pd.DataFrame(columns)


def as_in_another_pandas(whole: pd.DataFrame) -> Any:
    """Return a frame with unknown internals."""
    return SimpleNamespace(iloc=whole.iloc, columns=whole.columns)


@pytest.mark.parametrize("make", [frame, lambda: as_in_another_pandas(frame())])
def test_part_is_a_separate_frame(make: Any) -> None:
    whole = make()
    part = part_of_frame(whole, 2, 5)
    pd.testing.assert_frame_equal(part, frame().iloc[2:5].reset_index(drop=True))
    assert isinstance(part.index, pd.RangeIndex)
    part.loc[0, "i"] = 100
    part["x"] += 1
    part["new"] = part["i"] + part["j"]
    part.columns.name = "changed"
    assert part["new"].tolist() == [120, 33, 44]
    again = part_of_frame(whole, 2, 5)
    pd.testing.assert_frame_equal(again, frame().iloc[2:5].reset_index(drop=True))
    assert part_of_frame(whole, 6, 6).empty


@pytest.mark.parametrize("make", [frame, lambda: as_in_another_pandas(frame())])
def test_column_values_are_numpy_arrays_if_possible(make: Any) -> None:
    whole, other = frame(), make()
    for number, name in enumerate(whole):
        values = column_values(other, number)
        assert isinstance(values, np.ndarray) == isinstance(whole[name].dtype, np.dtype)
        assert values.dtype == whole[name].dtype
        pd.testing.assert_series_equal(pd.Series(values, name=name), whole[name])
        values[0] = values[1]
        pd.testing.assert_series_equal(whole[name], frame()[name])
