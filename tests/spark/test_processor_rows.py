"""Input and output of processors: keys, rows, their order, and the number of calls."""

import datetime as dt
from decimal import Decimal
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from jobs.processor_jobs import (
    NUMBER,
    CallbackProcessor,
    number_state,
    outputs,
    processor_job,
    run_callbacks,
)
from jobs.stateful_processor import StatefulProcessor
from pyspark.errors import PySparkTypeError
from pyspark.sql import Row
from pyspark.sql import types as spark

from holdfast.errors import InvalidRequestError
from holdfast.spark.processors import InputSettings

WIDE = pa.schema(
    [
        ("k", pa.string()),
        ("count", pa.int64()),
        ("index", pa.int32()),
        ("x", pa.float64()),
        ("b", pa.bool_()),
        ("bin", pa.binary()),
        ("d", pa.date32()),
        ("ts", pa.timestamp("us", "UTC")),
        ("ntz", pa.timestamp("us")),
        ("dec", pa.decimal128(10, 2)),
        ("arr", pa.list_(pa.int64())),
        ("st", pa.struct([("a", pa.int64()), ("t", pa.timestamp("us", "UTC"))])),
        ("m", pa.map_(pa.string(), pa.int64())),
    ]
)
NOON = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)
FULL = {
    "k": "a",
    "count": 2**60,
    "index": -1,
    "x": 0.5,
    "b": True,
    "bin": b"\xff",
    "d": dt.date(1, 1, 1),
    "ts": NOON,
    "ntz": dt.datetime(2024, 7, 1, 12),  # noqa: DTZ001
    "dec": Decimal("1.50"),
    "arr": [1, None],
    "st": {"a": None, "t": NOON},
    "m": {"x": 1},
}


def _keys(*keys: Any) -> list[dict[str, Any]]:
    return [{"k": key, "v": number} for number, key in enumerate(keys)]


def test_rows_have_all_columns_as_in_spark(memory_directory: str) -> None:
    zone = ZoneInfo("America/New_York")

    def body(_: Any, __: Any, key: Any, rows: Any) -> Any:
        first, second = rows
        assert type(key) is tuple
        assert isinstance(first, Row)
        assert first.__fields__ == WIDE.names
        local = NOON.astimezone(zone)
        expected = {**FULL, "ts": local, "st": {"a": None, "t": local}, "m": [("x", 1)]}
        assert first.asDict() == expected
        assert str(first.ts.tzinfo) == str(zone)
        assert first.st["t"].hour == first.ts.hour == 8
        assert first["count"] == 2**60
        assert callable(first.count)  # of the tuple, as in Spark
        assert first.x == 0.5
        assert "k" in first
        assert tuple(second) == ("a", *[None] * (len(WIDE) - 1))
        assert second.d is None
        with pytest.raises(AttributeError):
            _ = first.unknown
        with pytest.raises(RuntimeError):
            first.x = 1
        yield repr(first)[:30]

    job = processor_job(
        memory_directory,
        CallbackProcessor(rows=body),
        schema=WIDE,
        settings=InputSettings("America/New_York"),
    )
    empty = {**dict.fromkeys(WIDE.names), "k": "a"}
    assert outputs(job.run([FULL, empty])) == ["Row(k='a', count=1152921504606"]


def test_row_can_be_pickled_copied_and_compared(memory_directory: str) -> None:
    import copy
    import pickle

    def body(_: Any, __: Any, key: Any, rows: Any) -> Any:
        (row,) = rows
        assert pickle.loads(pickle.dumps(row)) == row == copy.deepcopy(row) == Row(k="a", v=0)
        assert hash(row) == hash(Row(k="a", v=0))
        yield pickle.loads(pickle.dumps(row)).v

    assert run_callbacks(memory_directory, rows=body, batch=_keys("a")) == [0]


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (pa.string(), [None, "", "A", "a", "aa", "ä", "ｱ", "\U0001f600"]),
        (pa.int64(), [None, -(2**63), -1, 0, 1, 2**63 - 1]),
        (pa.float64(), [None, float("-inf"), -1.5, 0.0, 2.5, float("inf")]),
        (pa.bool_(), [None, False, True]),
        (pa.date32(), [None, dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
        (pa.binary(), [None, b"", b"\x00", b"\x7f", b"\xff"]),
        (pa.decimal128(5, 2), [None, Decimal("-1.00"), Decimal("0.00"), Decimal("1.50")]),
    ],
    ids=str,
)
def test_keys_are_processed_in_ascending_order_null_first(
    memory_directory: str, kind: pa.DataType, keys: list[Any]
) -> None:
    schema = pa.schema([("k", kind), ("v", pa.int64())])

    def body(p: Any, _: Any, key: Any, rows: Any) -> Any:
        return [(repr(key), [row.v for row in rows])]

    rows = [{"k": key, "v": number} for number in range(3) for key in reversed(keys)]
    seen = run_callbacks(memory_directory, rows=body, batch=rows, schema=schema)
    assert seen == [(repr((key,)), [0, 1, 2]) for key in keys]


def test_zeros_nans_and_nulls_are_one_key_each_nan_last(memory_directory: str) -> None:
    schema = pa.schema([("k", pa.float64()), ("j", pa.int64())])
    nan = float("nan")
    keys = [(nan, 1), (-0.0, 1), (None, 1), (0.0, 1), (nan, 1), (nan, None), (None, 1), (1e300, 1)]

    def body(_: Any, __: Any, key: Any, rows: Any) -> Any:
        return [(str(key), len(list(rows)))]

    batch = [{"k": k, "j": j} for k, j in keys]
    options = {"schema": schema, "key": ("k", "j")}
    assert run_callbacks(memory_directory, rows=body, batch=batch, **options) == [
        ("(None, 1)", 2),
        ("(0.0, 1)", 2),
        ("(1e+300, 1)", 1),
        ("(nan, None)", 1),
        ("(nan, 1)", 2),
    ]


def test_unread_rows_are_skipped(memory_directory: str) -> None:
    def body(_: Any, __: Any, key: Any, rows: Any) -> Any:
        return [(key[0], next(rows).v if key[0] != "b" else None)]

    batch = _keys("a", "b", "c", "a", "b")
    expected = [("a", 0), ("b", None), ("c", 2)]
    assert run_callbacks(memory_directory, rows=body, batch=batch) == expected


def test_key_with_many_rows_is_called_once(memory_directory: str) -> None:
    def body(_: Any, __: Any, key: Any, rows: Any) -> Any:
        values = [row.v for row in rows]
        assert values == sorted(values)
        return [(key[0], len(values))]

    keys = ["a", *["b"] * 40_000, "c", *["d"] * 16_384, "e"]
    assert run_callbacks(memory_directory, rows=body, batch=_keys(*keys)) == [
        ("a", 1),
        ("b", 40_000),
        ("c", 1),
        ("d", 16_384),
        ("e", 1),
    ]


class _CallRecorder(StatefulProcessor):
    """Yields its calls, in order."""

    calls: tuple[str, ...] = ()

    def init(self, handle: Any) -> None:
        self.calls += ("init",)
        self.handle = handle
        self.v = handle.getValueState("v", NUMBER)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        self.calls += (key[0],)
        self.handle.registerTimer(0)
        self.v.update((1,))
        yield Row(out=repr(self.calls))
        self.v.update((2,))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        assert self.v.get() == (2,)
        self.calls += ("timer " + key.k,)
        yield Row(out=repr(self.calls))

    def close(self) -> None:
        if "init" in self.calls[:-1]:
            return
        with pytest.raises(Exception, match=r"Implicit key|handle state"):
            self.v.get()
        with pytest.raises(Exception, match="handle state"):
            self.handle.registerTimer(1)


def test_calls_are_in_order_on_a_new_copy_in_each_batch(memory_directory: str) -> None:
    processor = _CallRecorder()
    job = processor_job(memory_directory, processor, time_mode="EventTime")
    expected = [
        ("init", "a"),
        ("init", "a", "b"),
        ("init", "a", "b", "timer a"),
        ("init", "a", "b", "timer a", "timer b"),
    ]
    for _ in range(2):
        assert outputs(job.run(_keys("b", "a"))) == expected
    assert processor.calls == ()
    assert job.run([]) == []


def test_state_calls_in_a_generator_use_the_key_of_its_call(memory_directory: str) -> None:
    def body(_: Any, v: Any, key: Any, rows: Any) -> Any:
        for row in rows:
            v.update(((v.get() or (0,))[0] + row.v,))
            yield key[0], v.get()[0]

    results = run_callbacks(memory_directory, number_state, body, batch=_keys("a", "b", "a", "b"))
    assert results == [("a", 0), ("a", 2), ("b", 1), ("b", 4)]


def test_error_of_a_processor_fails_the_batch(memory_directory: str) -> None:
    def fail(_: Any, v: Any, key: Any, rows: Any) -> None:
        v.update((5,))
        message = "of the user"
        raise KeyError(message)

    with pytest.raises(KeyError, match="of the user"):
        run_callbacks(memory_directory, number_state, fail)
    values = run_callbacks(memory_directory, number_state, lambda _, v, *__: [v.get()])
    assert values == [None]


TWO = spark.StructType(
    [spark.StructField("k", spark.StringType()), spark.StructField("n", spark.LongType())]
)


class _OutputProcessor(StatefulProcessor):
    """Returns the given rows."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        return self._given

    def close(self) -> None:
        pass


def _convert(directory: str, given: Any, output: spark.StructType = TWO) -> list[Any]:
    """Return the output of a processor that returns the given rows."""
    return processor_job(directory, _OutputProcessor(given), output=output).run(_keys("a"))


class _Tuple(NamedTuple):
    k: str
    n: int


@pytest.mark.parametrize(
    "row",
    [
        Row(k="a", n=1),
        Row(n=1, k="a"),
        Row("k", "n")("a", 1),
        Row(x=5, n=1, k="a"),
        Row(k="a", n=np.int64(1)),
        Row(k="a", n=1.0),
    ],
)
def test_output_rows_are_matched_by_field_name(memory_directory: str, row: Row) -> None:
    assert _convert(memory_directory, [row]) == [{"k": "a", "n": 1}]


def test_nested_output_rows_are_converted(memory_directory: str) -> None:
    inner = spark.StructType([spark.StructField("x", spark.TimestampType())])
    output = spark.StructType(
        [
            spark.StructField("s", inner),
            spark.StructField("a", spark.ArrayType(inner)),
            spark.StructField("m", spark.MapType(spark.StringType(), inner)),
            spark.StructField("d", spark.DecimalType(10, 2)),
        ]
    )
    naive = dt.datetime(2024, 7, 1, 12)  # noqa: DTZ001
    row = Row(s=Row(x=naive), a=[Row(x=NOON), {"x": None}], m={"y": Row(x=naive)}, d=3)
    assert _convert(memory_directory, [row], output) == [
        {
            "s": {"x": NOON},
            "a": [{"x": NOON}, {"x": None}],
            "m": [("y", {"x": NOON})],
            "d": Decimal("3.00"),
        }
    ]


@pytest.mark.parametrize("given", [[], (), iter(())], ids=["list", "tuple", "iterator"])
def test_processor_may_yield_no_rows(memory_directory: str, given: Any) -> None:
    if not isinstance(given, list | tuple):
        given = []
    assert _convert(memory_directory, given) == []


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (None, TypeError, "'NoneType' object is not iterable"),
        ([Row(k="a")], InvalidRequestError, r"set \['n'\] too"),
        ([Row(K="a", N=1)], InvalidRequestError, r"set \['k', 'n'\] too"),
        ([Row(*["a", 1])], PySparkTypeError, "CANNOT_CONVERT_TYPE"),
        ([("a", 1)], InvalidRequestError, "of type tuple"),
        ([pd.DataFrame()], InvalidRequestError, "run it with transformWithStateInPandas"),
        ([_Tuple("a", 1)], InvalidRequestError, "of type _Tuple"),
        ([{"k": "a", "n": 1}], InvalidRequestError, "of type dict"),
        ([None], InvalidRequestError, "of type NoneType"),
        ([Row(k="a", n="7")], InvalidRequestError, "column 'n' of type bigint"),
        ([Row(k=1, n=7)], InvalidRequestError, "column 'k' of type string"),
        ([Row(k="a", n=1.5)], InvalidRequestError, "1.5 is not an integer"),
        ([Row(k="a", n=2**63)], InvalidRequestError, "column 'n' of type bigint"),
    ],
)
def test_output_other_than_its_schema_is_refused(
    memory_directory: str, given: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        _convert(memory_directory, given)


def test_many_output_rows_stay_in_order(memory_directory: str) -> None:
    def body(_: Any, __: Any, key: Any, rows: Any) -> Any:
        return (number for number in range(20_000))

    assert run_callbacks(memory_directory, rows=body) == list(range(20_000))


@pytest.mark.parametrize("count", [10, (1 << 16) + 10])
def test_few_and_many_keys_have_their_rows_in_order(memory_directory: str, count: int) -> None:
    def body(_: Any, __: Any, key: Any, rows: Any) -> Any:
        return [(key[0], [row.v for row in rows])]

    keys = [f"{number:06}" for number in range(count)]
    rows = _keys(*keys[::-1], *keys[:5])
    expected = [
        (key, [count - 1 - at, count + at] if at < 5 else [count - 1 - at])
        for at, key in enumerate(keys)
    ]
    assert run_callbacks(memory_directory, rows=body, batch=rows) == expected


def test_batch_without_rows_has_no_output(memory_directory: str) -> None:
    assert run_callbacks(memory_directory, batch=[]) == []
