"""Lookups of identities by their integer and by their sort key, with the same result."""

import numpy as np
import pytest

from holdfast.backends.keyed.segments.lookup import LookupKeys, find_integers, find_sort_keys
from holdfast.backends.keyed.segments.rows import SortedRows
from holdfast.backends.keyed.segments.side_tables import build_directory
from holdfast.backends.keyed.table import SortKeys


def sort_keys_of(numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> SortKeys:
    """Return distinct sort keys of 40 bits, in an order unrelated to the numbers."""
    return numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(24)


@pytest.mark.parametrize("wanted", ["present", "absent", "some", "none", "before", "after"])
def test_lookup_by_integer_finds_the_rows_of_the_sort_keys(wanted: str) -> None:
    random = np.random.default_rng(5)
    numbers = random.permutation(40_000)
    sort_keys = sort_keys_of(numbers)
    order = np.argsort(sort_keys)
    numbers, sort_keys = numbers[order], sort_keys[order]
    middle = slice(10_000, 20_000)
    directory = build_directory(sort_keys[middle])
    assert directory is not None
    looked_for = {
        "present": numbers[middle][::3],
        "absent": np.arange(50_000, 52_000),
        "some": np.arange(0, 60_000, 7),
        "none": np.empty(0, np.int64),
        "before": numbers[:9_000],
        "after": numbers[21_000:],
    }[wanted]
    looked_for = looked_for[np.argsort(sort_keys_of(looked_for))]
    keys = LookupKeys(sort_keys_of(looked_for))
    positions, rows = find_integers(directory, numbers[middle], keys.sort_keys, looked_for)
    assert numbers[middle][rows].tolist() == looked_for[positions].tolist()
    plain = SortedRows(sort_keys[middle], None, None, [numbers[middle]], [])
    expected = None
    if len(looked_for):
        expected = find_sort_keys(plain, keys, 0, len(keys), use_filter=False)
    if expected is None:
        assert not len(positions)
    else:
        assert positions.tolist() == expected[0].tolist()
        assert rows.tolist() == expected[1].tolist()
