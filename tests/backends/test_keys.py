"""The distinct keys of a batch: found by value, whatever their hashes are."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.backends.arrow import equal_rows, plain_floats
from holdfast.backends.keyed.grouping import group_rows
from holdfast.backends.keyed.keys import Keys
from holdfast.backends.keys import KeyGroupRange, key_hash, xxhash64
from holdfast.errors import InvalidRequestError

STRUCT = pa.struct([("a", pa.float32()), ("b", pa.list_(pa.string()))])
texts = st.none() | st.sampled_from(["", "a", "b", "ab"])
floats = st.none() | st.sampled_from([0.0, -0.0, math.nan, -math.nan, 1.5])
KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.null(): st.none(),
    pa.bool_(): st.none() | st.booleans(),
    pa.int64(): st.none() | st.integers(0, 9),
    pa.float64(): floats,
    pa.string(): texts,
    pa.decimal128(20, 0): st.none() | st.integers(0, 3),
    pa.list_(pa.float64()): st.none() | st.lists(floats, max_size=3),
    STRUCT: st.none() | st.fixed_dictionaries({"a": floats, "b": st.lists(texts, max_size=2)}),
}
SOME: dict[pa.DataType, list[Any]] = {
    pa.null(): [None],
    pa.bool_(): [None, True, False],
    pa.int64(): [None, *range(1000)],
    pa.float64(): [None, 0.0, -0.0, math.nan, -math.nan, 1.5],
    pa.string(): [None, "", "a", "b", "ab"],
    pa.decimal128(20, 0): [None, 1, 2],
    pa.list_(pa.float64()): [None, [], [0.0, None], [-0.0, None]],
    STRUCT: [None, {"a": math.nan, "b": ["a"]}, {"a": 1.0, "b": []}],
}
Hash = Callable[[list[pa.Array]], npt.NDArray[np.uint64]]
HASHES: dict[str, Hash] = {
    "xxhash64": xxhash64,
    "of two bits": lambda columns: xxhash64(columns) & np.uint64(3 << 62),
    "of none": lambda columns: np.zeros(len(columns[0]), np.uint64),
}


def plain(value: Any) -> Any:
    """The value as something that Python compares as keys are compared."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    if isinstance(value, list):
        return tuple(map(plain, value))
    if isinstance(value, dict):
        return tuple((name, plain(inner)) for name, inner in value.items())
    return value


@st.composite
def batches(draw: st.DrawFn) -> list[pa.Array]:
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=2))
    rows = draw(st.integers(0, 30))
    skipped = draw(st.integers(0, 2))
    return [
        pa.array(
            draw(st.lists(KINDS[kind], min_size=rows + skipped, max_size=rows + skipped)), kind
        )[skipped:]
        for kind in kinds
    ]


@given(batches(), st.sampled_from(sorted(HASHES)), st.sampled_from([1, 3, 128]))
def test_rows_with_equal_columns_have_one_key_whatever_the_hash(
    columns: list[pa.Array], name: str, max_parallelism: int
) -> None:
    keys = Keys.of(columns, max_parallelism, None if name == "xxhash64" else HASHES[name](columns))
    rows = [tuple(map(plain, row)) for row in zip(*(c.to_pylist() for c in columns), strict=True)]
    distinct = [
        tuple(map(plain, row)) for row in zip(*(c.to_pylist() for c in keys.columns), strict=True)
    ]
    assert len(set(distinct)) == len(distinct) == len(keys)
    assert [distinct[code] for code in keys.codes] == rows
    starts = [*keys.rows.starts.tolist(), len(rows)]
    for key, (first, end) in enumerate(pairwise(starts)):
        assert keys.rows.order[first:end].tolist() == np.flatnonzero(keys.codes == key).tolist()


@given(batches(), st.integers(1, 9))
def test_keys_ascend_by_key_group_and_then_by_hash(columns: list[pa.Array], groups: int) -> None:
    keys = Keys.of(columns, groups)
    assert (np.diff(keys.sort_keys.astype(object)) >= 0).all()
    murmur = key_hash(keys.columns).to_numpy().astype(np.int64)
    assert (keys.sort_keys >> np.uint64(48)).tolist() == [
        number % groups for number in murmur.tolist()
    ]
    upper = xxhash64(keys.columns) >> np.uint64(16)
    assert (keys.sort_keys & np.uint64((1 << 48) - 1)).tolist() == upper.tolist()


def test_some_of_the_keys_are_keys_with_a_row_each() -> None:
    keys = Keys.of([pa.chunked_array([["a", "b"], ["a", None]])], 128)
    some = keys.take([0, 2])
    assert some.columns[0].to_pylist() == [keys.columns[0][i].as_py() for i in (0, 2)]
    assert some.codes.tolist() == [0, 1]
    assert some.identities.sort_keys.tolist() == keys.sort_keys[[0, 2]].tolist()


def test_large_batch_is_grouped_by_all_hash_bits() -> None:
    numbers = np.arange(70_000) % 50_000
    keys = Keys.of([pa.array(numbers)], 1 << 15)
    assert len(keys) == 50_000
    assert (keys.columns[0].to_numpy()[keys.codes] == numbers).all()


@pytest.mark.parametrize("kind", list(KINDS), ids=str)
@pytest.mark.parametrize("rows", [20_000, 40_001])
def test_few_distinct_keys_equal_those_of_a_full_sort(kind: pa.DataType, rows: int) -> None:
    values = pa.array(SOME[kind], kind)
    batch = values.take(pa.array(np.random.default_rng(rows).integers(0, len(values), rows)))
    keys = Keys.of([batch], 128)
    sorted_keys = Keys.of([batch], 128, xxhash64([plain_floats(batch)]))
    assert keys.sort_keys.tolist() == sorted_keys.sort_keys.tolist()
    assert keys.rows.order.tolist() == sorted_keys.rows.order.tolist()
    assert keys.rows.starts.tolist() == sorted_keys.rows.starts.tolist()
    assert equal_rows(keys.columns[0], sorted_keys.columns[0]).all()


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("edge", ["min", "max"])
def test_dense_integers_at_the_limits_of_their_type_are_distinct(bits: int, edge: str) -> None:
    limit = getattr(np.iinfo(f"i{bits // 8}"), edge)
    step = 1 if edge == "min" else -1
    numbers = pa.array([limit + step * (row % 100) for row in range(20_000)], f"int{bits}")
    keys = Keys.of([numbers], 128)
    assert len(keys) == 100
    assert keys.columns[0].take(pa.array(keys.codes)).equals(numbers)


def test_keys_are_found_despite_an_unrepresentative_sample() -> None:
    numbers = np.arange(200_000)
    numbers[:: 200_000 // 4096] = 7  # these are sampled
    keys = Keys.of([pa.array(numbers)], 128)
    assert len(keys) == len(np.unique(numbers))
    assert (keys.columns[0].to_numpy()[keys.codes] == numbers).all()


def test_key_of_another_subtask_is_refused_with_possible_causes() -> None:
    keys = Keys.of([pa.array(range(100))], 128)
    keys.check(KeyGroupRange(0, 127))
    keys.take([]).check(KeyGroupRange(5, 5))
    groups = keys.sort_keys >> np.uint64(48)
    low, high = int(groups[0]), int(groups[-1])
    for refused, group in [
        (KeyGroupRange(low + 1, 127), low),
        (KeyGroupRange(0, high - 1), high),
    ]:
        with pytest.raises(
            InvalidRequestError, match=rf"key group {group} .* changed .* not deterministic"
        ):
            keys.check(refused)


@pytest.mark.parametrize("rows", [1, 20_000])
@pytest.mark.parametrize(
    "kind", [pa.uint64(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_unsupported_key_type_is_refused(kind: pa.DataType, rows: int) -> None:
    with pytest.raises(InvalidRequestError, match="can't be part of a key"):
        Keys.of([pa.nulls(rows, kind)], 128)


@pytest.mark.parametrize(
    "around",
    [lambda kind: kind, pa.list_, lambda kind: pa.struct([("m", kind)])],
    ids=["a map", "a list", "a struct"],
)
def test_map_in_a_key_is_refused_with_a_suggestion(around: Any) -> None:
    kind = around(pa.map_(pa.string(), pa.int64()))
    with pytest.raises(
        InvalidRequestError, match=r"can't be part of a key; .* sorted list of its entries"
    ):
        Keys.of([pa.array([None], kind)], 128)
    entries = pa.array(
        [[{"key": "a", "value": 1}]],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.int64())])),
    )
    assert len(Keys.of([entries], 128)) == 1


def test_invalid_key_columns_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="max parallelism 0"):
        Keys.of([pa.array([1])], 0)
    with pytest.raises(InvalidRequestError, match=r"1 hashes .* 2 rows"):
        Keys.of([pa.array([1, 2])], 128, np.zeros(1, np.uint64))
    with pytest.raises(InvalidRequestError, match="one or more columns"):
        Keys.of([], 128)


@pytest.mark.parametrize("by_counting", [True, False])
@pytest.mark.parametrize("spread", [0, 3, 40, 1000])
def test_sort_keys_with_few_different_bits_are_grouped(spread: int, *, by_counting: bool) -> None:
    random = np.random.default_rng(spread)
    rows = 3000
    sort_keys = random.integers(0, 1 << 63, rows, dtype=np.uint64) << np.uint64(1)
    sort_keys[: 2 * spread] = sort_keys[0] // 16 * 16 + random.integers(
        0, 16, 2 * spread, dtype=np.uint64
    )
    grouping = group_rows(sort_keys, [pa.array(sort_keys)], by_counting=by_counting)
    distinct, firsts = np.unique(sort_keys, return_index=True)
    assert sort_keys[grouping.order].tolist() == np.sort(sort_keys).tolist()
    assert grouping.firsts.tolist() == firsts.tolist()
    assert len(grouping) == len(distinct)
    assert grouping.order.tolist() == np.argsort(sort_keys, kind="stable").tolist()
