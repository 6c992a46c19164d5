"""Values of every type, by the current key, by columns and in a plain model: all three have to agree, on each backend.

The model has what Arrow makes of a column of the values. `HYPOTHESIS_PROFILE=nightly` runs 20,000 examples.
"""

import datetime as dt
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs.quick_disk import QUICK_DISK
from older_pyarrow import HALF_FLOATS

from holdfast.backends.arrow import IncompatibleValueError, equal_rows
from holdfast.backends.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.backends.keyed import (
    ColumnarStateTables,
    HeapStateTables,
    KeyedStateBackend,
    Keys,
    ReducingState,
    StateTables,
)
from holdfast.backends.keyed.rocksdb_tables import RocksDBStateTables
from holdfast.backends.keys import KeyGroupRange, check_key_type
from holdfast.backends.operator import BroadcastState
from holdfast.backends.serializers import Pickled, Serializer, serializer_of
from holdfast.errors import InvalidRequestError

GROUPS = 4
ALL = KeyGroupRange(0, GROUPS - 1)
USERS = ["a", "b"]


class Level(IntEnum):
    LOW = 1


@dataclass(frozen=True)
class Visit:
    """A class whose objects can be map keys."""

    page: str
    at: dt.datetime


@dataclass
class Basket:
    """A class whose objects can be changed."""

    items: list[int]
    price: Decimal | None = None


@dataclass
class Line:
    """A class whose objects can be changed, but nothing inside of them."""

    item: str | None
    count: int
    price: Decimal


@dataclass(frozen=True)
class Place:
    """A class whose objects can't be changed, and neither can anything inside of them."""

    name: str
    floor: int | None


def rocksdb(key_groups: KeyGroupRange) -> StateTables:
    return RocksDBStateTables(key_groups, directory=QUICK_DISK)


Tables = Callable[[KeyGroupRange], StateTables]

on_each_backend = pytest.mark.parametrize("tables", [ColumnarStateTables, HeapStateTables, rocksdb])
NAMED = ["UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kathmandu", "Pacific/Apia"]
ZONES = [*map(ZoneInfo, NAMED), dt.UTC, dt.timezone(dt.timedelta(hours=-3, minutes=-7))]
HOURS = [
    dt.datetime(2020, 10, 25, 0),  # noqa: DTZ001  # clocks go back in Berlin
    dt.datetime(2020, 3, 29, 0),  # noqa: DTZ001  # and forward
    dt.datetime(2020, 11, 1, 0),  # noqa: DTZ001
    dt.datetime(2011, 12, 29, 22),  # noqa: DTZ001  # Apia leaves out a day
    dt.datetime(1969, 12, 31, 22),  # noqa: DTZ001
    dt.datetime(1900, 1, 1),  # noqa: DTZ001
    dt.datetime(1, 1, 1),  # noqa: DTZ001
    dt.datetime(9999, 12, 31, 18),  # noqa: DTZ001
]
numbers = st.one_of(
    st.sampled_from([0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, -129, 127]),
    st.integers(-300, 300),
    st.sampled_from([np.int64(5), np.int8(5), np.uint64(2**63), np.bool_(True), True, Level.LOW]),
    st.sampled_from([1.0, 2.5, math.nan, Decimal(2), Decimal("2.5"), Fraction(4, 2), "1", pd.NA]),
)
floats = st.one_of(
    st.floats(allow_nan=True),
    st.floats(width=16),
    st.integers(-300, 300),
    st.sampled_from(
        [-0.0, 0.0, 0.1, 3e38, 1e300, np.float32(0.1), np.float64(0.1), np.float16(0.1)]
    ),
    st.sampled_from([True, Decimal("0.5"), Fraction(1, 2), 2**53 + 1, 2**24 + 1, "0.5"]),
)
decimals = st.one_of(
    st.decimals(-1000, 1000, places=2),
    st.sampled_from(
        ["0", "-0", "-0.00", "1.5", "1E+2", "1E-18", "NaN", "sNaN", "Infinity", "1.555"]
    ).map(Decimal),
    st.sampled_from(
        ["12345678901.123456789012345678", "99999999999999999999.999999999999999999", "99999999.99"]
    ).map(Decimal),
    st.sampled_from([1, True, 0.5, np.int64(1), Fraction(1, 2)]),
)
texts = st.one_of(
    st.text(st.characters(codec=None), max_size=3),
    st.sampled_from(["a", "é", "\ud800", "\U0001f600", "￿", np.str_("a"), b"a", 1, "a\0"]),
)
octets = st.one_of(
    st.binary(max_size=3),
    st.binary(max_size=3).map(bytearray),
    st.binary(max_size=4).map(lambda data: memoryview(data)[::2]),
    st.sampled_from([b"aa", bytearray(b"aa"), np.bytes_(b"aa"), "aa", 1, [1]]),
)
flags = st.sampled_from([True, False, np.bool_(True), 0, 1, "x", 1.0])


@st.composite
def instants(draw: st.DrawFn) -> Any:
    hour = draw(st.sampled_from(HOURS))
    steps = draw(
        st.sampled_from([dt.timedelta(minutes=15), dt.timedelta(seconds=1, microseconds=1)])
    )
    value = hour + draw(st.integers(0, 20)) * steps
    zone = draw(st.sampled_from([None, *ZONES]))
    value = value.replace(tzinfo=zone, fold=draw(st.integers(0, 1)))
    if draw(st.integers(0, 9)):
        return value
    try:
        return draw(st.sampled_from([pd.Timestamp, np.datetime64]))(value.replace(tzinfo=None))
    except (ValueError, OverflowError):
        return value


times_of_days = st.one_of(
    st.times(), st.times(timezones=st.just(dt.UTC)), st.sampled_from([5, -5, 86_400_000, 86_399])
)
counts = st.sampled_from([0, 5, -1, 10**12, -(2**63), 2**63 - 1, 2**62, np.int64(5), True])
instants_or_counts = st.one_of(
    instants(),
    counts,
    st.sampled_from([pd.Timestamp(5), pd.NaT, np.datetime64("NaT"), dt.date(2020, 1, 1)]),
)
durations = st.one_of(
    st.timedeltas(),
    st.integers(-5, 5).map(lambda n: dt.timedelta(seconds=n)),
    counts,
    st.sampled_from([pd.Timedelta(5), pd.Timedelta(5000), np.timedelta64(5, "us"), pd.NaT]),
)
dates = st.one_of(
    st.dates(), st.sampled_from([dt.date.min, dt.date.max, 5, pd.Timestamp(0)]), instants()
)


def lists_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(st.one_of(values, st.none()), max_size=3)
    return st.one_of(lists, lists.map(tuple), st.sampled_from(["ab", {1}, 5, np.array([1, 2])]))


def structs_of(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    full = st.fixed_dictionaries(
        {name: st.one_of(each, st.none()) for name, each in fields.items()}
    )
    some = st.fixed_dictionaries({}, optional=dict(fields))
    return st.one_of(full, some, full.map(lambda row: tuple(row.values())), st.just({"other": 1}))


TYPES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    *((kind, numbers) for kind in (pa.int8(), pa.int16(), pa.int32(), int, pa.uint64())),
    *((kind, floats) for kind in (*HALF_FLOATS, pa.float32(), float)),
    *(
        (kind, decimals)
        for kind in (pa.decimal128(38, 18), pa.decimal128(10, 2), pa.decimal256(76, 10))
    ),
    *((kind, texts) for kind in (str, pa.large_string(), pa.dictionary(pa.int32(), pa.string()))),
    *((kind, octets) for kind in (bytes, pa.large_binary(), pa.binary(2))),
    (bool, flags),
    *(
        (pa.timestamp(unit, zone), instants_or_counts)
        for unit in ("s", "ms", "us", "ns")
        for zone in (None, "UTC", "Europe/Berlin", "America/St_Johns", "+05:30")
    ),
    *((kind, dates) for kind in (pa.date32(), pa.date64())),
    *(
        (kind, times_of_days)
        for kind in (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"))
    ),
    *((pa.duration(unit), durations) for unit in ("s", "ms", "us", "ns")),
    (pa.list_(pa.float32()), lists_of(floats)),
    (pa.list_(pa.list_(pa.binary())), lists_of(lists_of(octets))),
    (pa.list_(pa.timestamp("us", "Europe/Berlin"), 2), lists_of(instants())),
    (
        pa.struct([("n", pa.int64()), ("x", pa.float64()), ("s", pa.string()), ("b", pa.bool_())]),
        structs_of(n=numbers, x=floats, s=texts, b=flags),
    ),
    (
        pa.struct([("n", pa.int32()), ("at", pa.timestamp("us", "Europe/Berlin"))]),
        structs_of(n=numbers, at=instants()),
    ),
    (
        pa.struct(
            [pa.field("d", pa.decimal128(10, 2), nullable=False), ("l", pa.list_(pa.int64()))]
        ),
        structs_of(d=decimals, l=lists_of(numbers)),
    ),
    (
        pa.map_(pa.string(), pa.float32()),
        st.one_of(
            st.dictionaries(st.sampled_from("abc"), st.one_of(floats, st.none()), max_size=3),
            st.lists(st.tuples(st.sampled_from("ab"), floats), max_size=3),
            st.just(5),
        ),
    ),
    (Visit, st.builds(Visit, st.sampled_from("ab"), instants())),
    (Basket, st.builds(Basket, st.lists(numbers, max_size=3), st.one_of(st.none(), decimals))),
    (Line, st.builds(Line, st.one_of(st.none(), texts), numbers, decimals)),
    (Place, st.builds(Place, texts, st.one_of(st.none(), numbers))),
    (dict[str, int], st.dictionaries(st.sampled_from("ab"), numbers, max_size=2)),
    (
        dict[str, Any],
        st.dictionaries(st.sampled_from("ab"), st.one_of(numbers, instants()), max_size=2),
    ),
    (Pickled(list), st.lists(st.integers(0, 3), max_size=3)),
]


def is_hashed(kind: Any) -> bool:
    """Return whether the type can be a map key with hashable Python objects."""
    try:
        check_key_type(serializer_of(kind, {}).storage_type)
    except InvalidRequestError:
        return False
    return kind not in (Basket, Line, dict[str, int], dict[str, Any]) and not (
        isinstance(kind, Pickled) or (isinstance(kind, pa.DataType) and kind.num_fields)
    )


HASHED = [(kind, values) for kind, values in TYPES if is_hashed(kind)]


def spoil(value: Any) -> None:
    """Change an object and everything inside of it in place."""
    match value:
        case dict():
            for item in value.values():
                spoil(item)
            value["spoiled"] = value
        case list():
            for item in value:
                spoil(item)
            value.append("spoiled")
        case tuple():
            for item in value:
                spoil(item)
        case bytearray():
            value[:] = b"spoiled"
        case Basket():
            spoil(value.items)
            value.price = Decimal(-77)
        case Line():
            value.item, value.count = "spoiled", -77


def fresh(value: Any) -> Any:
    """An object like this one, with other objects inside wherever they can be changed."""
    match value:
        case dict():
            return {name: fresh(item) for name, item in value.items()}
        case list():
            return list(map(fresh, value))
        case tuple():
            return tuple(map(fresh, value))
        case bytearray():
            return bytearray(value)
        case Basket():
            return Basket(list(value.items), value.price)
        case Line():
            return Line(value.item, value.count, value.price)
    return value


def model_of(serializer: Serializer, value: Any) -> pa.Array | None:
    """The column of a single value as Arrow makes it; None if the value is refused."""
    try:
        (column,) = serializer.encode([value])
        serializer.decode(pa.chunked_array([column]))
    except (IncompatibleValueError, InvalidRequestError):
        return None
    return column


def decode_one(serializer: Serializer, column: pa.Array) -> Any:
    (value,) = serializer.decode(pa.chunked_array([column]))
    return value


@contextmanager
def open_backend(tables: Tables) -> Iterator[KeyedStateBackend]:
    """A new backend."""
    backend = KeyedStateBackend(tables(ALL), pa.schema([("user", pa.string())]), GROUPS)
    try:
        yield backend
    finally:
        backend.close()


def users(backend: KeyedStateBackend, *names: str) -> Keys:
    return backend.keys([pa.array(names, pa.string())])


@contextmanager
def current(backend: KeyedStateBackend, user: str) -> Iterator[None]:
    keys = users(backend, *USERS)
    backend.begin_batch(keys)
    backend.set_current_key(int(keys.codes[USERS.index(user)]))
    yield
    backend.end_batch()


def is_refused(call: Callable[..., object], *given_values: Any) -> bool:
    """Return whether a call is refused with an error that names the state."""
    try:
        call(*given_values)
    except InvalidRequestError as error:
        assert "'s'" in str(error)  # noqa: PT017
        return True
    return False


def same(left: pa.Array, right: pa.Array) -> bool:
    try:
        return bool(equal_rows(left, right).all())
    except pa.ArrowNotImplementedError:  # maps
        return repr(left.to_pylist()) == repr(right.to_pylist())


@st.composite
def typed_values(draw: st.DrawFn, types: list[tuple[Any, st.SearchStrategy[Any]]] = TYPES) -> Any:
    kind, values = draw(st.sampled_from(types))
    return kind, draw(st.lists(values, min_size=1, max_size=5))


@on_each_backend
@given(typed_values())
def test_value_is_the_same_by_key_by_columns_and_in_arrow(tables: Tables, typed: Any) -> None:
    kind, values = typed
    serializer = serializer_of(kind, {})
    with open_backend(tables) as backend:
        state = backend.get_state(ValueStateDescriptor("s", kind))
        columns = backend.get_state(ValueStateDescriptor("c", kind)).columns
        keys = users(backend, "a")
        for value in values:
            expected = model_of(serializer, value)
            if expected is None:
                with pytest.raises(InvalidRequestError, match="'s'"), current(backend, "a"):
                    state.update(value)
                    backend.end_batch()
                    state.columns.rows.form.decode(state.columns.get(keys))
                backend.end_batch()
                state.columns.clear(keys)
                continue
            columns.put(keys, [value])
            assert same(columns.get(keys), expected)
            shown = repr(decode_one(serializer, expected))
            with current(backend, "a"):
                offered = fresh(value)
                state.update(offered)
                spoil(offered)
                for _ in range(2):
                    kept = state.value()
                    assert repr(kept) == shown
                    spoil(kept)
            assert same(state.columns.get(keys), expected)
            with current(backend, "a"):
                for _ in range(2):
                    kept = state.value()
                    assert repr(kept) == shown
                    spoil(kept)
                state.update(state.value())
            assert same(state.columns.get(keys), expected)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.float32(), 1e39),
        (pa.int32(), 2**31),
        (pa.list_(pa.int8()), [1, 128]),
        (pa.struct([("n", pa.int32())]), {"n": 2**31}),
        (
            pa.timestamp("us", "Europe/Berlin"),
            dt.datetime(1, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")),
        ),
    ],
)
def test_value_out_of_bounds_is_refused_at_once(kind: Any, value: Any) -> None:
    with open_backend(ColumnarStateTables) as backend, current(backend, "a"):
        assert is_refused(backend.get_state(ValueStateDescriptor("s", kind)).update, value)


@on_each_backend
@given(typed_values())
def test_list_is_the_same_by_key_by_columns_and_in_arrow(tables: Tables, typed: Any) -> None:
    kind, values = typed
    serializer = serializer_of(kind, {})
    given_values = [value for value in values if model_of(serializer, value) is not None]
    shown = [repr(decode_one(serializer, model_of(serializer, value))) for value in given_values]
    with open_backend(tables) as backend:
        state = backend.get_list_state(ListStateDescriptor("s", kind))
        columns = backend.get_list_state(ListStateDescriptor("c", kind)).columns
        keys = users(backend, "a")
        for count in range(1, len(given_values) + 1):
            with current(backend, "a"):
                offered = fresh(given_values[count - 1])
                state.add(offered)
                spoil(offered)
                if count % 2:
                    kept = state.get()
                    spoil(kept)
                    assert list(map(repr, state.get())) == shown[:count]
            columns.append(keys, given_values[count - 1 : count])
            assert same(state.columns.get(keys), columns.get(keys))
        with current(backend, "a"):
            offered = fresh(given_values)
            state.update(offered)
            spoil(offered)
            assert list(map(repr, state.get())) == shown
        if given_values:
            assert same(state.columns.get(keys), columns.get(keys))


@on_each_backend
@given(typed_values(HASHED), st.lists(st.booleans(), min_size=5, max_size=5))
def test_map_keys_are_the_same_by_key_by_columns_and_in_arrow(
    tables: Tables, typed: Any, reads: Any
) -> None:
    kind, values = typed
    serializer = serializer_of(kind, {})
    with open_backend(tables) as backend:
        state = backend.get_map_state(MapStateDescriptor("s", kind, int))
        columns = backend.get_map_state(MapStateDescriptor("c", kind, int)).columns
        keys = users(backend, "a")
        model: list[tuple[pa.Array, int]] = []
        for number, (value, is_read) in enumerate(zip(values, reads, strict=False)):
            expected = model_of(serializer, value)
            if expected is None:
                continue
            model = [entry for entry in model if not same(entry[0], expected)]
            model.append((expected, number))
            columns.put(keys, [value], [number])
            with current(backend, "a"):
                if is_read:
                    state.items()
                state.put(value, number)
                assert state.get(value) == number
                assert state.get(decode_one(serializer, expected)) == number
                assert sorted(state.values()) == sorted(each for _, each in model)
            with current(backend, "a"):
                for key, each in state.items().items():
                    assert state.get(key) == each
                    assert columns.get(keys, [key], [0]).to_pylist() == [each]
                for key, each in model:
                    assert state.get(decode_one(serializer, key)) == each
            assert sorted(state.columns.items(keys).values.to_pylist()) == sorted(  # noqa: PD011  # no frame
                each for _, each in model
            )
        for key, _ in model:
            with current(backend, "a"):
                state.remove(decode_one(serializer, key))
        assert not len(state.columns.items(keys))


@given(typed_values(HASHED))
def test_broadcast_keys_are_distinct_as_in_arrow(typed: Any) -> None:
    kind, values = typed
    serializer = serializer_of(kind, {})
    state = BroadcastState("s", serializer, serializer_of(int, {}))
    model: list[tuple[pa.Array, int]] = []
    for number, value in enumerate(values):
        expected = model_of(serializer, value)
        if expected is None:
            assert is_refused(state.put, value, number)
            continue
        if repr(decode_one(serializer, expected)) == "nan":
            continue
        model = [entry for entry in model if not same(entry[0], expected)]
        model.append((expected, number))
        state.put(value, number)
    assert len(state) == len(model)
    for key, number in model:
        assert state.get(decode_one(serializer, key)) == number
    stored = state.capture()()
    again = BroadcastState("s", serializer, serializer_of(int, {}), stored)
    assert sorted(number for _, number in again.entries()) == sorted(number for _, number in model)
    for key, number in model:
        assert again.get(decode_one(serializer, key)) == number


@on_each_backend
@given(typed_values(HASHED), st.permutations(range(5)))
def test_namespaces_are_distinct_as_in_arrow(tables: Tables, typed: Any, order: Any) -> None:
    kind, values = typed
    if not isinstance(kind, pa.DataType):
        return
    serializer = serializer_of(kind, {})
    namespace = pa.schema([("n", kind)])
    with open_backend(tables) as backend:
        state = backend.get_list_state(ListStateDescriptor("s", int), namespace)
        model: list[tuple[pa.Array, list[int]]] = []
        with current(backend, "a"):
            for number in order:
                value = values[number % len(values)]
                expected = model_of(serializer, value)
                if expected is None:
                    continue
                known = [each for key, each in model if same(key, expected)]
                if not known:
                    known = [[]]
                    model.append((expected, known[0]))
                known[0].append(number)
                backend.set_current_namespace(value)
                state.add(number)
                assert state.get() == known[0]
        for key, expected_numbers in model:
            keys = backend.in_namespaces(users(backend, "a"), [key])
            assert state.columns.get(keys).to_pylist() == [expected_numbers]


FOLDS: list[tuple[Any, Any, st.SearchStrategy[Any]]] = [
    *(("sum", kind, numbers) for kind in (pa.int8(), pa.int32(), int, pa.uint64())),
    *(
        ("sum", kind, st.integers(-64, 64).map(lambda n: n / 8))
        for kind in (*HALF_FLOATS, pa.float32(), float)
    ),
    *(
        ("sum", kind, decimals)
        for kind in (pa.decimal128(38, 18), pa.decimal128(10, 2), pa.decimal256(76, 10))
    ),
    *(("sum", pa.duration(unit), durations) for unit in ("s", "ms", "us")),
    *((fold, pa.bool_(), flags) for fold in ("any", "all")),
    *(
        (fold, kind, values)
        for fold in ("min", "max")
        for kind, values in TYPES
        if isinstance(kind, type | pa.DataType)
        and not (
            isinstance(kind, pa.DataType) and (kind.num_fields or pa.types.is_dictionary(kind))
        )
        and kind not in (Visit, Basket, Line, Place)
    ),
    ("concatenate", pa.list_(pa.float32()), lists_of(floats)),
    ("count", int, numbers),
]


@st.composite
def folded_values(draw: st.DrawFn) -> Any:
    fold, kind, values = draw(st.sampled_from(FOLDS))
    batches = draw(
        st.lists(
            st.lists(st.tuples(values, st.booleans()), min_size=1, max_size=4),
            min_size=1,
            max_size=3,
        )
    )
    return fold, kind, batches


@on_each_backend
@given(folded_values())
def test_folds_are_the_same_by_key_and_by_columns(tables: Tables, folds: Any) -> None:
    fold, kind, batches = folds
    serializer = serializer_of(kind, {})
    try:
        descriptor = ReducingStateDescriptor("s", fold, kind)
    except InvalidRequestError:
        return
    with open_backend(tables) as backend, open_backend(tables) as other:
        state = backend.get_reducing_state(descriptor)
        columns = other.get_reducing_state(descriptor).columns
        keys = users(backend, "a")
        for batch in batches:
            values = [
                (value, is_read)
                for value, is_read in batch
                if model_of(serializer, value) is not None
            ]
            if not values:
                continue

            is_sum_refused = is_refused(add_by_columns, other, columns, values)
            assert is_refused(add_by_key, backend, state, values) >= is_sum_refused
            if (
                is_sum_refused
                or is_refused(backend.end_batch)
                or is_refused(state.columns.get, keys)
            ):
                return
            assert same(state.columns.get(keys), columns.get(keys))
            with current(backend, "a"):
                assert same(model_of(serializer, state.get()), columns.get(keys))


def add_by_key(backend: KeyedStateBackend, state: ReducingState, values: list[Any]) -> None:
    with current(backend, "a"):
        for value, is_read in values:
            if is_read:
                state.get()
            state.add(value)
        state.get()
    state.columns.get(users(backend, "a"))


def add_by_columns(backend: KeyedStateBackend, columns: Any, values: list[Any]) -> None:
    columns.add(users(backend, *["a"] * len(values)), [value for value, _ in values])
    columns.get(users(backend, "a"))


SMALL_FLOATS = floats.filter(lambda n: not isinstance(n, float) or abs(n) < 1e9)


@given(st.lists(SMALL_FLOATS, min_size=1, max_size=4))
def test_means_are_the_same_by_key_and_by_columns(values: Any) -> None:
    keyed_states = open_backend(ColumnarStateTables), open_backend(ColumnarStateTables)
    with keyed_states[0] as by_key, keyed_states[1] as by_columns:
        state = by_key.get_aggregating_state(AggregatingStateDescriptor("s", "avg"))
        columns = by_columns.get_aggregating_state(AggregatingStateDescriptor("s", "avg")).columns
        keys = users(by_columns, "a")
        for value in values:
            with current(by_key, "a"):
                assert is_refused(state.add, value) == is_refused(columns.add, keys, [value])
        np.testing.assert_allclose(  # floats are added in another order
            pa.array(state.columns.get(keys)).to_numpy(zero_copy_only=False),
            pa.array(columns.get(keys)).to_numpy(zero_copy_only=False),
            rtol=1e-12,
        )
