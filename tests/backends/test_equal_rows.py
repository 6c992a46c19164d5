"""Rows grouped by equality although unequal rows share sort keys."""

from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from holdfast.backends.keyed.columns import from_arrow, group_equal_rows

NAN = float("nan")
VALUES: dict[str, tuple[Sequence[object], pa.DataType]] = {
    "integers": ([1, 2, 3, 4], pa.int64()),
    "floats": ([0.0, -0.0, NAN, 1.5], pa.float64()),
    "floats or null": ([0.0, -0.0, NAN, 1.5, None], pa.float32()),
    "texts": (["a", "b", "", None], pa.string()),
    "decimals": ([Decimal(1), Decimal(2), None], pa.decimal128(20, 2)),
    "flags": ([True, False, None], pa.bool_()),
    "structs": ([{"a": 0.0}, {"a": -0.0}, {"a": NAN}, {"a": None}, None], None),
    "lists": ([[1], [1, None], [], None], pa.list_(pa.int8())),
}


def comparable(value: object) -> object:
    """Return a value that is equal in Python where the row is."""
    if isinstance(value, dict):
        return tuple((name, comparable(item)) for name, item in value.items())
    if isinstance(value, list):
        return tuple(map(comparable, value))
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0  # noqa: PLR0124  # NaN
    return value


@pytest.mark.parametrize("second", VALUES)
@pytest.mark.parametrize("first", VALUES)
def test_equal_rows_with_colliding_sort_keys_are_adjacent(first: str, second: str) -> None:
    random = np.random.default_rng(7)
    columns = [
        pa.array([values[n] for n in random.integers(0, len(values), 50)], type)
        for values, type in (VALUES[first], VALUES[second])
    ]
    rows = [
        tuple(map(comparable, row)) for row in zip(*(c.to_pylist() for c in columns), strict=True)
    ]
    hashes: dict[tuple[object, ...], int] = {}
    for row in rows:
        hashes.setdefault(row, int(random.integers(0, 3)))
    sort_keys = np.array([hashes[row] for row in rows], np.uint64)
    order = np.argsort(sort_keys, kind="stable")
    grouped, is_first = group_equal_rows(
        order, sort_keys.take(order), [from_arrow(column) for column in columns]
    )
    groups = [group.tolist() for group in np.split(grouped, is_first.nonzero()[0][1:])]
    expected: dict[tuple[object, ...], list[int]] = {}
    for number, row in enumerate(rows):
        expected.setdefault(row, []).append(number)
    assert sorted(groups) == sorted(expected.values())
    assert np.array_equal(sort_keys.take(grouped), np.sort(sort_keys))
