import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.backends import KeyGroupRange
from holdfast.backends.keys import (
    MAX_PARALLELISM,
    default_max_parallelism,
    key_group_range,
    operator_index_for_key_group,
)
from holdfast.errors import InvalidRequestError

# The last key group of each operator.
RANGES = {
    (128, 1): [127],
    (128, 2): [63, 127],
    (128, 3): [42, 85, 127],
    (128, 4): [31, 63, 95, 127],
    (128, 5): [25, 51, 76, 102, 127],
    (10, 3): [3, 6, 9],
    (10, 4): [2, 4, 7, 9],
    (13, 2): [6, 12],
    (3, 2): [1, 2],
    (7, 7): [0, 1, 2, 3, 4, 5, 6],
    (32768, 7): [4681, 9362, 14043, 18724, 23405, 28086, 32767],
}

parallelisms = st.integers(1, MAX_PARALLELISM).flatmap(
    lambda limit: st.tuples(st.just(limit), st.integers(1, limit))
)


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [
        *((p, 128) for p in (1, 2, 64, 85)),
        *((p, 256) for p in (86, 100, 128, 170, 171)),
        *((p, 512) for p in (172, 200, 341)),
        (342, 1024),
        (1000, 2048),
        (10000, 16384),
        *((p, 32768) for p in (21845, 21846, 32768)),
    ],
)
def test_default_max_parallelism_is_flinks(parallelism: int, expected: int) -> None:
    assert default_max_parallelism(parallelism) == expected


@given(st.integers(1, MAX_PARALLELISM))
def test_default_leaves_room_to_scale_out(parallelism: int) -> None:
    default = default_max_parallelism(parallelism)
    assert default.bit_count() == 1
    assert parallelism <= default <= MAX_PARALLELISM
    assert default >= min(parallelism * 3 // 2, MAX_PARALLELISM)


class TestKeyGroupRanges:
    @pytest.mark.parametrize(("numbers", "ends"), RANGES.items(), ids=str)
    def test_it_is_flinks(self, numbers: tuple[int, int], ends: list[int]) -> None:
        max_parallelism, parallelism = numbers
        starts = [0, *(end + 1 for end in ends[:-1])]
        expected = [KeyGroupRange(*both) for both in zip(starts, ends, strict=True)]
        ranges = [key_group_range(max_parallelism, parallelism, i) for i in range(parallelism)]
        assert ranges == expected

    @given(parallelisms)
    def test_ranges_cover_all_groups_once_and_evenly(self, numbers: tuple[int, int]) -> None:
        max_parallelism, parallelism = numbers
        ranges = [key_group_range(max_parallelism, parallelism, i) for i in range(parallelism)]
        assert [group for owned in ranges for group in owned] == list(range(max_parallelism))
        lengths = [len(owned) for owned in ranges]
        assert max(lengths) - min(lengths) <= 1

    @given(parallelisms, st.data())
    def test_operator_of_a_group_owns_it(
        self, numbers: tuple[int, int], data: st.DataObject
    ) -> None:
        group = data.draw(st.integers(0, numbers[0] - 1))
        operator_index = operator_index_for_key_group(*numbers, group)
        assert group in key_group_range(*numbers, operator_index)

    @pytest.mark.parametrize(
        ("max_parallelism", "parallelism", "message"),
        [
            (0, 0, "max parallelism 0 is not between 1 and 32768"),
            (32769, 1, "max parallelism 32769 is not between 1 and 32768"),
            (128, 0, "parallelism 0 is not between 1 and max parallelism 128"),
            (128, 129, "parallelism 129 is not between 1 and max parallelism 128"),
        ],
    )
    def test_numbers_out_of_bounds_are_refused(
        self, max_parallelism: int, parallelism: int, message: str
    ) -> None:
        for function in (key_group_range, operator_index_for_key_group):
            with pytest.raises(InvalidRequestError, match=message):
                function(max_parallelism, parallelism, 0)

    def test_operator_or_group_out_of_range_is_refused(self) -> None:
        for index in (-1, 4):
            with pytest.raises(InvalidRequestError, match="between 0 and 3"):
                key_group_range(128, 4, index)
        for group in (-1, 128):
            with pytest.raises(InvalidRequestError, match="between 0 and 127"):
                operator_index_for_key_group(128, 4, group)


class TestKeyGroupRange:
    def test_both_ends_belong_to_it(self) -> None:
        groups = KeyGroupRange(3, 5)
        assert list(groups) == [3, 4, 5]
        assert len(groups) == 3
        assert [group in groups for group in (2, 3, 5, 6)] == [False, True, True, False]
        assert "3" not in groups
        assert 3.0 not in groups
        assert [int(key_group) for key_group in np.arange(8) if key_group in groups] == [3, 4, 5]
        assert len(KeyGroupRange(7, 7)) == 1

    def test_range_position_is_one_of_its_groups(self) -> None:
        groups = KeyGroupRange(3, 5)
        assert [groups[index] for index in range(3)] == [3, 4, 5]
        for index in (-1, 3):
            with pytest.raises(IndexError):
                groups[index]

    @pytest.mark.parametrize("ends", [(1, 0), (5, 3), (0, -1), (-1, 3), (-2, -1)])
    def test_invalid_range_is_refused(self, ends: tuple[int, int]) -> None:
        with pytest.raises(InvalidRequestError):
            KeyGroupRange(*ends)

    def test_range_can_be_pickled_and_copied(self) -> None:
        groups = KeyGroupRange(3, 5)
        assert pickle.loads(pickle.dumps(groups)) == copy.copy(groups) == groups
