"""What processors are given and may give: keys, rows, their order, and how often they are called."""

import datetime as dt
from decimal import Decimal
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from jobs.processor_jobs import NUMBER, SCHEMA, CallbackProcessor, outputs, processor_job
from pyspark.errors import PySparkTypeError
from pyspark.sql import Row
from pyspark.sql import types as spark
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

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


def test_rows_have_all_columns_as_spark_has_them(memory_directory: str) -> None:
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
            _ = first.nothing
        with pytest.raises(RuntimeError):
            first.x = 1
        yield repr(first)[:30]

    job = processor_job(
        memory_directory,
        CallbackProcessor(rows=body),
        schema=WIDE,
        settings=InputSettings("America/New_York"),
    )
    nothing = {**dict.fromkeys(WIDE.names), "k": "a"}
    assert outputs(job.run([FULL, nothing])) == ["Row(k='a', count=1152921504606"]


def test_a_row_can_be_pickled_copied_and_compared(memory_directory: str) -> None:
    import copy
    import pickle

    def body(_: Any, __: Any, key: Any, rows: Any) -> Any:
        (row,) = rows
        assert pickle.loads(pickle.dumps(row)) == row == copy.deepcopy(row) == Row(k="a", v=0)
        assert hash(row) == hash(Row(k="a", v=0))
        yield pickle.loads(pickle.dumps(row)).v

    assert outputs(
        processor_job(memory_directory, CallbackProcessor(rows=body)).run(_keys("a"))
    ) == [0]


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
def test_keys_have_their_turn_in_ascending_order_null_first(
    memory_directory: str, kind: pa.DataType, keys: list[Any]
) -> None:
    schema = pa.schema([("k", kind), ("v", pa.int64())])
    seen: list[Any] = []

    def body(p: Any, _: Any, key: Any, rows: Any) -> Any:
        return [(repr(key), [row.v for row in rows])]

    job = processor_job(memory_directory, CallbackProcessor(rows=body), schema=schema)
    rows = [{"k": key, "v": number} for number in range(3) for key in reversed(keys)]
    seen = outputs(job.run(rows))
    assert seen == [(repr((key,)), [0, 1, 2]) for key in keys]


def test_zeros_nans_and_nulls_are_one_key_each_and_nan_is_the_greatest(
    memory_directory: str,
) -> None:
    schema = pa.schema([("k", pa.float64()), ("j", pa.int64())])
    nan = float("nan")
    keys = [(nan, 1), (-0.0, 1), (None, 1), (0.0, 1), (nan, 1), (nan, None), (None, 1), (1e300, 1)]

    def body(_: Any, __: Any, key: Any, rows: Any) -> Any:
        return [(str(key), len(list(rows)))]

    job = processor_job(
        memory_directory, CallbackProcessor(rows=body), schema=schema, key=("k", "j")
    )
    assert outputs(job.run({"k": k, "j": j} for k, j in keys)) == [
        ("(None, 1)", 2),
        ("(0.0, 1)", 2),
        ("(1e+300, 1)", 1),
        ("(nan, None)", 1),
        ("(nan, 1)", 2),
    ]


def test_rows_that_are_not_read_are_passed_over(memory_directory: str) -> None:
    def body(_: Any, __: Any, key: Any, rows: Any) -> Any:
        return [(key[0], next(rows).v if key[0] != "b" else None)]

    job = processor_job(memory_directory, CallbackProcessor(rows=body))
    assert outputs(job.run(_keys("a", "b", "c", "a", "b"))) == [("a", 0), ("b", None), ("c", 2)]


def test_a_key_of_very_many_rows_is_called_once(memory_directory: str) -> None:
    def body(_: Any, __: Any, key: Any, rows: Any) -> Any:
        values = [row.v for row in rows]
        assert values == sorted(values)
        return [(key[0], len(values))]

    job = processor_job(memory_directory, CallbackProcessor(rows=body))
    keys = ["a", *["b"] * 40_000, "c", *["d"] * 16_384, "e"]
    assert outputs(job.run(_keys(*keys))) == [
        ("a", 1),
        ("b", 40_000),
        ("c", 1),
        ("d", 16_384),
        ("e", 1),
    ]


class _Counting(StatefulProcessor):
    """Gives what was called, in order."""

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


def test_calls_come_in_order_on_a_fresh_copy_in_each_batch(memory_directory: str) -> None:
    processor = _Counting()
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


def test_state_calls_in_a_generator_are_of_the_key_that_it_was_called_for(
    memory_directory: str,
) -> None:
    def body(_: Any, v: Any, key: Any, rows: Any) -> Any:
        for row in rows:
            v.update(((v.get() or (0,))[0] + row.v,))
            yield key[0], v.get()[0]

    processor = CallbackProcessor(lambda handle: handle.getValueState("v", NUMBER), body)
    job = processor_job(memory_directory, processor)
    assert outputs(job.run(_keys("a", "b", "a", "b"))) == [("a", 0), ("a", 2), ("b", 1), ("b", 4)]


def test_what_a_processor_raises_fails_the_batch_and_leaves_the_state(
    memory_directory: str,
) -> None:
    def init(handle: Any) -> Any:
        return handle.getValueState("v", NUMBER)

    def failing(_: Any, v: Any, key: Any, rows: Any) -> None:
        v.update((5,))
        message = "of the user"
        raise KeyError(message)

    job = processor_job(memory_directory, CallbackProcessor(init, failing))
    with pytest.raises(KeyError, match="of the user"):
        job.run(_keys("a"))
    job = processor_job(memory_directory, CallbackProcessor(init, lambda _, v, *__: [v.get()]))
    assert outputs(job.run(_keys("a"))) == [None]


TWO = spark.StructType(
    [spark.StructField("k", spark.StringType()), spark.StructField("n", spark.LongType())]
)


class _Giving(StatefulProcessor):
    def __init__(self, given: Any) -> None:
        self._given = given

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        return self._given

    def close(self) -> None:
        pass


def _given(directory: str, given: Any, output: spark.StructType = TWO) -> list[Any]:
    return processor_job(directory, _Giving(given), output=output).run(_keys("a"))


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
def test_rows_are_taken_by_the_names_of_their_fields(memory_directory: str, row: Row) -> None:
    assert _given(memory_directory, [row]) == [{"k": "a", "n": 1}]


def test_nested_rows_are_taken_too(memory_directory: str) -> None:
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
    assert _given(memory_directory, [row], output) == [
        {
            "s": {"x": NOON},
            "a": [{"x": NOON}, {"x": None}],
            "m": [("y", {"x": NOON})],
            "d": Decimal("3.00"),
        }
    ]


@pytest.mark.parametrize("given", [[], (), iter(())], ids=["list", "tuple", "iterator"])
def test_a_processor_may_give_nothing(memory_directory: str, given: Any) -> None:
    if not isinstance(given, list | tuple):
        given = []
    assert _given(memory_directory, given) == []


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
def test_what_does_not_fit_the_output_is_refused(
    memory_directory: str, given: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        _given(memory_directory, given)


def test_very_many_rows_come_out_in_order(memory_directory: str) -> None:
    def body(_: Any, __: Any, key: Any, rows: Any) -> Any:
        return (number for number in range(20_000))

    job = processor_job(memory_directory, CallbackProcessor(rows=body))
    assert [int(row["out"]) for row in job.run(_keys("a"))] == list(range(20_000))


@pytest.mark.parametrize("count", [10, (1 << 16) + 10])
def test_few_and_very_many_keys_have_their_rows_in_order(memory_directory: str, count: int) -> None:
    def body(_: Any, __: Any, key: Any, rows: Any) -> Any:
        return [(key[0], [row.v for row in rows])]

    keys = [f"{number:06}" for number in range(count)]
    rows = _keys(*keys[::-1], *keys[:5])
    expected = [
        (key, [count - 1 - at, count + at] if at < 5 else [count - 1 - at])
        for at, key in enumerate(keys)
    ]
    assert (
        outputs(processor_job(memory_directory, CallbackProcessor(rows=body)).run(rows)) == expected
    )


def test_a_batch_without_rows_has_no_schema_trouble(memory_directory: str) -> None:
    job = processor_job(memory_directory, CallbackProcessor(), schema=SCHEMA)
    assert job.run([]) == []
