"""State variables of processors: the values that they take and return."""

import datetime as dt
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from jobs.processor_jobs import (
    NUMBER,
    NUMBER_AND_TEXT,
    TEXT,
    CallbackProcessor,
    processor_job,
    run_callbacks,
)
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql import types as spark

import holdfast
from holdfast.errors import InvalidRequestError


def _struct(**fields: spark.DataType) -> spark.StructType:
    return spark.StructType([spark.StructField(name, kind) for name, kind in fields.items()])


@pytest.fixture
def run_steps(memory_directory: str) -> Callable[..., list[Any]]:
    """Return a function that runs steps with the states of a key, each in its own batch, and returns their results."""

    def run(init: Any, *steps: Any) -> list[Any]:
        results = []
        for step in steps:
            results += run_callbacks(
                memory_directory, init, lambda _, states, *__, step=step: step(states)
            )
        return results

    return run


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give this process the time zone of Berlin."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


def _value(schema: spark.StructType = NUMBER_AND_TEXT) -> Any:
    return lambda handle: handle.getValueState("v", schema)


def _list(handle: Any) -> Any:
    return handle.getListState("l", NUMBER)


def _map(handle: Any) -> Any:
    return handle.getMapState("m", TEXT, NUMBER)


def test_only_variable_need_not_be_named_for_one_key(memory_directory: str) -> None:
    processor = CallbackProcessor(_value(), lambda p, states, key, rows: states.update((7, key[0])))
    job = processor_job(memory_directory, processor)
    job.run([{"k": key, "v": 1} for key in "ab"])
    pointer = job.latest.location.external_pointer
    (row,) = holdfast.read_state(pointer, key="b").to_pylist()
    assert row["value"] == {"n": 7, "s": "b"}
    with pytest.raises(InvalidRequestError, match="needs a name; choose one of"):
        holdfast.read_state(pointer)  # a processor has another state with its declarations


def test_value_state_behaves_as_in_spark(run_steps: Any) -> None:
    def first(v: Any) -> Any:
        yield v.exists(), v.get()
        v.clear()
        v.update((1, "x"))
        yield v.get(), v.exists()
        v.update([2, "y"])
        yield v.get()

    def second(v: Any) -> Any:
        yield v.get()
        v.clear()
        yield v.get(), v.exists()

    def third(v: Any) -> Any:
        yield v.get()
        v.update((None, None))
        yield v.get(), v.exists()

    assert run_steps(_value(), first, second, third, lambda v: [v.get(), v.exists()]) == [
        (False, None),
        ((1, "x"), True),
        (2, "y"),
        (2, "y"),
        (None, False),
        None,
        ((None, None), True),
        (None, None),
        True,
    ]


def test_list_state_behaves_as_in_spark(run_steps: Any) -> None:
    def first(s: Any) -> Any:
        yield list(s.get()), s.exists()
        s.appendValue((1,))
        s.appendList([(2,), (3,)])
        yield list(s.get()), s.exists()

    def second(s: Any) -> Any:
        s.appendValue((4,))
        yield list(s.get())
        s.put([(9,), (8,)])
        yield list(s.get())
        s.put((n,) for n in range(2))
        s.appendValue((None,))
        yield list(s.get())

    def third(s: Any) -> Any:
        s.appendValue([5])
        return []

    def fourth(s: Any) -> Any:
        yield list(s.get())
        s.clear()
        yield s.exists()

    assert run_steps(_list, first, second, third, fourth, lambda s: [list(s.get())]) == [
        ([], False),
        ([(1,), (2,), (3,)], True),
        [(1,), (2,), (3,), (4,)],
        [(9,), (8,)],
        [(0,), (1,), (None,)],
        [(0,), (1,), (None,), (5,)],
        False,
        [],
    ]


def test_list_iterator_has_the_elements_of_its_start(run_steps: Any) -> None:
    def body(s: Any) -> Any:
        lazy = s.get()
        s.appendValue((1,))
        yield list(lazy)
        began = s.get()
        next(began)
        s.appendValue((2,))
        yield list(began)
        s.put([(1,), (2,), (3,)])
        began = s.get()
        next(began)
        s.appendValue((4,))
        s.clear()
        yield list(began), list(began)

    assert run_steps(_list, body) == [[(1,)], [], ([(2,), (3,)], [])]


@pytest.mark.parametrize("method", ["put", "appendList"])
def test_empty_list_is_refused_as_in_spark(run_steps: Any, method: str) -> None:
    def body(s: Any) -> Any:
        with pytest.raises(
            PySparkRuntimeError, match=r"ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE"
        ):
            getattr(s, method)([])
        return [list(s.get())]

    assert run_steps(_list, body) == [[]]


def test_value_other_than_a_row_is_a_type_error(run_steps: Any) -> None:
    def of_list(s: Any) -> Any:
        for call, given in ((s.put, None), (s.appendValue, None), (s.put, [None]), (s.put, [3])):
            with pytest.raises(TypeError):
                call(given)
        return [list(s.get())]

    def of_map(m: Any) -> Any:
        call: Any
        for call in (
            lambda: m.updateValue(None, (1,)),
            lambda: m.updateValue(("k",), None),
            lambda: m.getValue(None),
        ):
            with pytest.raises(TypeError):
                call()
        return [m.exists()]

    def of_value(v: Any) -> Any:
        for given in (None, 3):
            with pytest.raises(TypeError):
                v.update(given)
        return [v.get()]

    assert run_steps(_list, of_list) == [[]]
    assert run_steps(_map, of_map) == [False]
    assert run_steps(_value(), of_value) == [None]


def test_map_state_behaves_as_in_spark(run_steps: Any) -> None:
    def first(m: Any) -> Any:
        yield m.getValue(("k",)), m.containsKey(("k",)), m.exists()
        m.removeKey(("k",))
        m.clear()
        m.updateValue(("k",), (1,))
        m.updateValue((None,), (None,))
        m.updateValue(("",), (2,))
        yield m.getValue(("k",)), m.getValue((None,)), m.containsKey((None,))

    def second(m: Any) -> Any:
        value = m.getValue(("k",))
        assert isinstance(value, Row)
        assert value.n == 1
        yield sorted(m.keys(), key=str), sorted(m.values(), key=str)
        m.removeKey(("k",))
        yield sorted(m.iterator(), key=str)
        m.updateValue(("new",), (3,))
        m.updateValue(("",), (4,))

    def third(m: Any) -> Any:
        yield sorted(m.iterator(), key=str)
        for key in list(m.keys()):
            m.removeKey(key)
        yield m.exists()
        m.updateValue(("z",), (7,))
        yield m.exists()

    def fourth(m: Any) -> Any:
        yield list(m.iterator())
        m.clear()
        m.updateValue(("y",), (8,))
        yield list(m.iterator()), m.getValue(("z",))

    assert run_steps(_map, first, second, third, fourth, lambda m: [list(m.iterator())]) == [
        (None, False, False),
        (Row(n=1), Row(n=None), True),
        ([("",), ("k",), (None,)], [(1,), (2,), (None,)]),
        [(("",), (2,)), ((None,), (None,))],
        [(("",), (4,)), (("new",), (3,)), ((None,), (None,))],
        False,
        True,
        [(("z",), (7,))],
        ([(("y",), (8,))], None),
        [(("y",), (8,))],
    ]


def test_map_iterator_has_the_entries_of_its_start(run_steps: Any) -> None:
    def body(m: Any) -> Any:
        for letter in "abc":
            m.updateValue((letter,), (1,))
        for name in ("iterator", "keys", "values"):
            began = getattr(m, name)()
            next(began)
            m.updateValue(("d",), (4,))
            m.clear()
            yield len(list(began))
            for letter in "abc":
                m.updateValue((letter,), (1,))

    assert run_steps(_map, body) == [2, 2, 2]


@pytest.mark.parametrize("values", [(1,), (1, "a", 3)])
def test_value_with_missing_or_extra_fields_is_refused(
    run_steps: Any, values: tuple[Any, ...]
) -> None:
    def body(v: Any) -> Any:
        with pytest.raises(PySparkRuntimeError, match="STRUCT_ARRAY_LENGTH_MISMATCH") as caught:
            v.update(values)
        return [str(caught.value), v.get()]

    text, value = run_steps(_value(), body)
    assert text == (
        "Error updating value state: [STRUCT_ARRAY_LENGTH_MISMATCH] Input row doesn't have expected number of "
        f"values required by the schema. 2 fields are required while {len(values)} values are provided."
    )
    assert value is None


@pytest.mark.parametrize(
    "given",
    [
        ("7", "a"),
        (7.9, "a"),
        (True, "b"),
        (2**40, "a"),
        (1, 1.5),
        (Row(a=1), "a"),
        {"n": 1, "s": "a"},
        "ab",
        Row(s="z", n=3),
    ],
    ids=str,
)
def test_value_of_another_type_is_refused_by_name(run_steps: Any, given: Any) -> None:
    def body(v: Any) -> Any:
        with pytest.raises(InvalidRequestError, match="state 'v'"):
            v.update(given)
        return [v.get()]

    assert run_steps(_value(), body) == [None]


class _Pair(NamedTuple):
    n: Any
    s: Any


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((7, 8), (7, "8")),
        (_Pair(7, "a"), (7, "a")),
        ((np.int64(7), np.str_("a")), (7, "a")),
        (Row(n=7, s="a"), (7, "a")),
        (Row(x=7, y="a"), (7, "a")),
        ([7, None], (7, None)),
    ],
    ids=str,
)
def test_row_is_matched_by_position(run_steps: Any, given: Any, expected: Any) -> None:
    def body(v: Any) -> Any:
        v.update(iter(given))
        assert v.get() == expected
        v.update(given)
        return [v.get()]

    assert run_steps(_value(), body, lambda v: [v.get()]) == [expected, expected]


UTC = dt.UTC


UNCHANGED: list[tuple[spark.DataType, Any]] = [
    (spark.ByteType(), -128),
    (spark.LongType(), 2**63 - 1),
    (spark.FloatType(), 0.5),
    (spark.BinaryType(), b"\x00\xff"),
    (spark.DateType(), dt.date(1, 1, 1)),
    (spark.TimestampNTZType(), dt.datetime(2024, 1, 2, 3, 4, 5, 6)),
    (spark.TimestampType(), dt.datetime(2024, 1, 2, 3, 4, 5, 6)),
    (spark.DayTimeIntervalType(), dt.timedelta(days=-1, seconds=3)),
    (spark.ArrayType(spark.ArrayType(spark.StringType())), [["a"], None, []]),
    (spark.MapType(spark.StringType(), spark.IntegerType()), {"a": 1, "b": None}),
    (_struct(a=_struct(b=spark.DateType())), Row(a=Row(b=dt.date(2024, 1, 1)))),
    (spark.NullType(), None),
    (spark.VarcharType(3), "abc"),
]
"""Values that are returned as they were given."""


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        *((kind, value, value) for kind, value in UNCHANGED),
        (spark.DoubleType(), 1, 1.0),
        (spark.DoubleType(), np.float32(0.5), 0.5),
        (spark.FloatType(), 1e300, float("inf")),
        (spark.BooleanType(), np.bool_(True), True),
        (spark.BinaryType(), bytearray(b"ab"), b"ab"),
        (spark.DateType(), dt.datetime(2024, 1, 2, 3, tzinfo=UTC), dt.date(2024, 1, 2)),
        (spark.DecimalType(10, 2), Decimal("1.555"), Decimal("1.56")),
        (spark.DecimalType(10, 2), Decimal("-1.555"), Decimal("-1.56")),
        (spark.DecimalType(10, 2), 3, Decimal("3.00")),
        (
            spark.TimestampType(),
            dt.datetime(2024, 1, 2, 3, tzinfo=UTC),
            dt.datetime(2024, 1, 2, 3, tzinfo=UTC).astimezone().replace(tzinfo=None),
        ),
        (
            spark.TimestampType(),
            pd.Timestamp("1969-12-31 23:59:59.5"),
            dt.datetime(1969, 12, 31, 23, 59, 59, 500_000),
        ),
        (spark.DayTimeIntervalType(), pd.Timedelta(seconds=3), dt.timedelta(seconds=3)),
        (spark.ArrayType(spark.IntegerType()), (1, None), [1, None]),
        (spark.ArrayType(spark.IntegerType()), np.array([1, 2]), [1, 2]),
        (spark.MapType(spark.StringType(), spark.IntegerType()), [("a", 1)], {"a": 1}),
        (_struct(a=spark.IntegerType(), b=spark.StringType()), (1, None), Row(a=1, b=None)),
        (_struct(a=spark.IntegerType()), {"a": 1, "x": 2}, Row(a=1)),
    ],
    ids=str,
)
def test_value_of_each_type_is_returned_as_in_spark(
    memory_directory: str, kind: spark.DataType, given: Any, expected: Any
) -> None:
    def check(state: Any) -> None:
        value = (state.get() or [None])[0]
        assert value == expected
        assert type(value) is type(expected) or isinstance(value, Row)

    def write(_: Any, states: Any, key: Any, rows: Any) -> None:
        v, s, m = states
        for value in (given, None):
            v.update((value,))
            s.appendValue((value,))
            m.updateValue((1,), (value,))
        v.update((given,))
        check(v)

    def read(_: Any, states: Any, key: Any, rows: Any) -> None:
        v, s, m = states
        check(v)
        assert list(s.get()) == [(expected,), (None,)]
        assert m.getValue((1,)) == (None,)

    schema = _struct(x=kind)

    def init(handle: Any) -> Any:
        return (
            handle.getValueState("v", schema),
            handle.getListState("l", schema),
            handle.getMapState("m", NUMBER, schema),
        )

    for body in (write, read):
        run_callbacks(memory_directory, init, body)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (spark.LongType(), 2**63),
        (spark.LongType(), True),
        (spark.DoubleType(), "1"),
        (spark.DoubleType(), True),
        (spark.BooleanType(), 1),
        (spark.DateType(), "2024-01-01"),
        (spark.TimestampType(), 5),
        (spark.TimestampType(), pd.NaT),
        (
            spark.TimestampType(),
            dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-20))),
        ),
        (spark.DayTimeIntervalType(), dt.timedelta.max),
        (spark.StringType(), "\ud800"),
        (spark.BinaryType(), "\ud800"),
        (
            spark.MapType(spark.DecimalType(3, 2), spark.IntegerType()),
            {Decimal("1.001"): 1, Decimal("1.002"): 2},
        ),
        (spark.DecimalType(3, 2), Decimal(10)),
        (spark.DecimalType(3, 2), 1.5),
        (spark.DecimalType(3, 2), Decimal("NaN")),
        (spark.ArrayType(spark.IntegerType()), [1, "a"]),
        (spark.ArrayType(spark.IntegerType()), 3),
        (spark.MapType(spark.StringType(), spark.IntegerType()), {None: 1}),
        (spark.MapType(spark.StringType(), spark.IntegerType()), "ab"),
        (_struct(a=spark.IntegerType()), (1, 2)),
        (_struct(a=spark.IntegerType()), ("a",)),
        (spark.NullType(), 1),
    ],
    ids=str,
)
def test_value_changed_by_spark_is_refused(
    run_steps: Any, kind: spark.DataType, given: Any
) -> None:
    def body(v: Any) -> Any:
        with pytest.raises(InvalidRequestError, match="field 'x"):
            v.update((given,))
        return [v.get()]

    assert run_steps(_value(_struct(x=kind)), body) == [None]


@pytest.mark.usefixtures("berlin")
def test_map_keys_are_instants_in_any_time_zone(run_steps: Any) -> None:
    early, late = (dt.datetime(2020, 10, 25, hour, 30, tzinfo=dt.UTC) for hour in (0, 1))

    def body(m: Any) -> Any:
        m.updateValue((early,), (1,))
        m.updateValue((late,), (2,))
        yield m.getValue((early,)), m.getValue((late,))

    def second(m: Any) -> Any:
        yield [m.getValue(key) for key in sorted(m.keys(), key=lambda key: key[0].fold)]

    schema = _struct(at=spark.TimestampType())
    results = run_steps(lambda handle: handle.getMapState("m", schema, NUMBER), body, second)
    assert results == [((1,), (2,)), [(1,), (2,)]]


def test_processor_may_change_its_values(run_steps: Any) -> None:
    schema = _struct(x=spark.ArrayType(spark.IntegerType()))

    def first(v: Any) -> Any:
        given = [1]
        v.update((given,))
        given.append(2)
        v.get()[0].append(3)
        yield v.get()

    def second(v: Any) -> Any:
        v.get()[0].append(4)
        yield v.get()

    assert run_steps(_value(schema), first, second) == [([1],), ([1],)]


@pytest.mark.parametrize(
    "schema",
    [
        _struct(d=spark.DoubleType()),
        _struct(a=spark.ArrayType(spark.IntegerType()), s=spark.StringType()),
        _struct(s=_struct(d=spark.DoubleType())),
    ],
    ids=lambda schema: schema.simpleString(),
)
def test_map_key_may_have_any_hashable_type(run_steps: Any, schema: Any) -> None:
    nan = float("nan")
    keys: dict[str, list[Any]] = {
        "struct<d:double>": [(nan,), (0.0,), (None,), (1.5,)],
        "struct<a:array<int>,s:string>": [([1, 2], "a"), ([], "a"), (None, "a"), ([None], None)],
        "struct<s:struct<d:double>>": [((nan,),), ((0.0,),), (None,), ((None,),)],
    }
    given = keys[schema.simpleString()]

    def init(handle: Any) -> Any:
        return handle.getMapState("m", schema, NUMBER)

    def write(m: Any) -> Any:
        for number, key in enumerate(given):
            m.updateValue(key, (-1,))
            m.updateValue(key, (number,))
        return [len(list(m.keys()))]

    def read(m: Any) -> Any:
        for number, key in enumerate(given):
            assert m.getValue(key) == (number,)
        yield len(list(m.keys()))
        m.removeKey(given[0])

    counts = run_steps(init, write, read, lambda m: [len(list(m.keys()))])
    assert counts == [len(given), len(given), len(given) - 1]


def test_struct_without_fields_is_a_value(run_steps: Any) -> None:
    def first(v: Any) -> Any:
        v.update(())
        return [v.get()]

    assert run_steps(_value(_struct()), first, lambda v: [v.get(), v.exists()]) == [(), (), True]


def test_large_map_is_read_entry_by_entry(memory_directory: str) -> None:
    def write(_: Any, m: Any, key: Any, rows: Any) -> None:
        for number in range(3000):
            m.updateValue((str(number),), (number,))

    def read(_: Any, m: Any, key: Any, rows: Any) -> Any:
        assert m.getValue(("7",)) == (7,)
        assert m.getValue(("7",)) == (7,)
        assert not m.containsKey(("nowhere",))
        m.updateValue(("7",), (8,))
        m.removeKey(("9",))
        assert m.getValue(("7",)) == (8,)
        assert m.getValue(("9",)) is None
        assert [m.getValue((str(n),)) for n in range(10, 30)] == [(n,) for n in range(10, 30)]
        yield len(list(m.keys()))
        m.clear()
        assert m.getValue(("7",)) is None

    rows = [{"k": letter, "v": 1} for letter in "abcd"]
    run_callbacks(memory_directory, _map, write, batch=rows)
    assert run_callbacks(memory_directory, _map, read, batch=rows) == [2999] * 4
    exist = run_callbacks(memory_directory, _map, lambda _, m, *__: [m.exists()], batch=rows)
    assert exist == [False] * 4
