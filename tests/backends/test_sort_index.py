"""The order of a key group's rows after arbitrary changes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from holdfast.backends.keyed.heap import SortIndex

SORT_KEYS = [key // 3 * 7 for key in range(30)]  # three identities each
changes = st.lists(
    st.one_of(st.integers(0, 29), st.tuples(st.integers(0, 220), st.integers(0, 220))), max_size=80
)


@given(start=st.sets(st.integers(0, 29)), changes=changes)
def test_sort_index_ranges_match_a_set_after_changes(
    start: set[int], changes: list[int | tuple[int, int]]
) -> None:
    index = SortIndex(((number,), SORT_KEYS[number]) for number in start)
    model = set(start)
    for change in changes:
        if isinstance(change, tuple):
            first, end = np.array([[change[0]], [change[1]]], np.uint64)
            identities = [number for (number,) in index.between(first, end)]
            keys = [SORT_KEYS[number] for number in identities]
            assert keys == sorted(keys)
            inside = {n for n in model if change[0] <= SORT_KEYS[n] < change[1]}
            assert sorted(identities) == sorted(inside)
            expected = min((SORT_KEYS[number] for number in model), default=None)
            assert index.min_sort_key() == expected
        elif change in model:
            index.remove((change,))
            model.remove(change)
        else:
            index.add((change,), SORT_KEYS[change])
            model.add(change)
