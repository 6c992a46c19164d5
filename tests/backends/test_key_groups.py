import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.backends import KeyGroupRange
from holdfast.backends.keys import (
    MAX_PARALLELISM,
    default_max_parallelism,
    hash32,
    hash32_long,
    key_group,
    key_group_for_key_hash,
    key_group_range,
    murmur32,
    operator_index_for_key_group,
)
from holdfast.errors import InvalidRequestError

# What Flink's own classes say. Of ints: the key, murmur32, its key group of 128, of 4096 and of
# 32768, and the operator of 4 that owns the group of 128.
INTS = [
    (0, 593689054, 94, 2526, 31198, 2),
    (1, 68075478, 86, 4054, 16342, 2),
    (2, 1085422463, 127, 2943, 15231, 3),
    (3, 847579505, 113, 2417, 2417, 3),
    (7, 1343918321, 113, 241, 4337, 3),
    (42, 1134849565, 29, 3613, 28189, 0),
    (100, 616682048, 64, 576, 21056, 2),
    (127, 1931274395, 27, 2203, 26779, 0),
    (128, 132521001, 41, 3113, 7209, 1),
    (1000, 3506311, 7, 135, 135, 0),
    (-1, 1982413648, 80, 2896, 15184, 2),
    (-2, 1087594050, 66, 3650, 24130, 2),
    (2147483647, 1653689534, 62, 3262, 19646, 1),
    (-2147483648, 1718298732, 108, 2156, 10348, 3),
    (1234567, 111118176, 96, 1888, 1888, 3),
]

# Of strings: the key, hash32, murmur32, its key group of 128 and of 4096, and the operator of 4.
STRINGS = [
    ("", 0, 593689054, 94, 2526, 2),
    ("a", 97, 1455541201, 81, 3025, 2),
    ("b", 98, 516420758, 22, 1174, 0),
    ("ab", 3105, 1707819681, 33, 673, 1),
    ("hello", 99162322, 1715862179, 35, 2723, 1),
    ("user-1", -836031825, 1662039673, 121, 1657, 3),
    ("user-2", -836031824, 2010244374, 22, 1302, 0),
    ("flink", 97520992, 1330823394, 98, 226, 3),
    ("key", 106079, 801471432, 72, 3016, 2),
    ("中文", 646394, 464757671, 39, 935, 1),
    ("😀", 1772899, 1934073014, 54, 3254, 1),
]

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
    lambda most: st.tuples(st.just(most), st.integers(1, most))
)
key_groups = st.integers(0, 50)


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
def test_the_default_leaves_room_to_scale_out(parallelism: int) -> None:
    default = default_max_parallelism(parallelism)
    assert default.bit_count() == 1
    assert parallelism <= default <= MAX_PARALLELISM
    assert default >= min(parallelism * 3 // 2, MAX_PARALLELISM)


class TestHash:
    @pytest.mark.parametrize(("key", "expected"), [row[:2] for row in INTS])
    def test_murmur32_is_flinks(self, key: int, expected: int) -> None:
        assert murmur32(key) == murmur32(key & 0xFFFFFFFF) == expected

    def test_murmur32_is_flinks_from_minus_to_plus_a_million(self) -> None:
        checksum = 0
        for key in range(-1_000_000, 1_000_000):
            checksum = checksum * 31 + murmur32(key) & 0xFFFF_FFFF_FFFF_FFFF
        assert checksum == 2332442025218954414
        checksum = checksum * 31 + murmur32(1_000_000) & 0xFFFF_FFFF_FFFF_FFFF
        assert checksum - (1 << 64) == -1481273510923324381

    @given(st.integers(-(2**31), 2**31 - 1))
    def test_murmur32_is_never_negative(self, key_hash: int) -> None:
        assert 0 <= murmur32(key_hash) < 2**31

    @pytest.mark.parametrize("row", STRINGS, ids=lambda row: repr(row[0]))
    def test_strings_hash_as_in_java(self, row: tuple[str, int, int, int, int, int]) -> None:
        key, hashed, murmured, of_128, of_4096, operator = row
        assert hash32(key) == hashed
        assert murmur32(hashed) == murmured
        assert (key_group(key, 128), key_group(key, 4096)) == (of_128, of_4096)
        assert operator_index_for_key_group(128, 4, of_128) == operator

    @pytest.mark.parametrize(
        ("key", "expected"),
        [
            (True, 1231),
            (False, 1237),
            (2**31 - 1, 2**31 - 1),
            (-(2**31), -(2**31)),
            (2**31, -(2**31)),
            (2**32, 1),
            (-(2**31) - 1, -(2**31)),
            (2**63 - 1, -(2**31)),
            (-(2**63), -(2**31)),
            (0.0, 0),
            (-0.0, -(2**31)),
            (1.0, 1072693248),
            (math.nan, 2146959360),
            pytest.param(-math.nan, 2146959360, id="-nan"),
            (b"", 1),
            (b"\x01\x02\x03", 30817),
            (b"\xff", 30),
            ("\ud83d", 0xD83D),
        ],
    )
    def test_other_types_hash_as_in_java(self, key: Any, expected: int) -> None:
        assert hash32(key) == expected

    @given(st.integers(0, 2**31 - 1))
    def test_small_longs_hash_as_ints_if_they_are_not_negative(self, key: int) -> None:
        assert hash32_long(key) == hash32(key) == key
        assert hash32_long(-key - 1) == key != hash32(-key - 1)

    @given(st.integers(-(2**63), 2**63 - 1) | st.text() | st.floats() | st.binary() | st.booleans())
    def test_a_hash_has_32_bits_and_a_sign(self, key: Any) -> None:
        assert -(2**31) <= hash32(key) < 2**31

    @pytest.mark.parametrize(
        "key",
        [
            None,
            2**63,
            (1, "secret"),
            [1],
            bytearray(b"secret"),
            np.int64(1),
            object(),
        ],
        ids=lambda key: type(key).__name__,
    )
    def test_other_keys_are_refused_without_showing_them(self, key: Any) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            hash32(key)
        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize("key", [2**63, -(2**63) - 1])
    def test_a_long_has_64_bits(self, key: int) -> None:
        with pytest.raises(InvalidRequestError, match="64 bits"):
            hash32_long(key)


class TestKeyGroup:
    @pytest.mark.parametrize("row", INTS, ids=lambda row: str(row[0]))
    def test_ints_are_in_flinks_groups(self, row: tuple[int, ...]) -> None:
        key, _, of_128, of_4096, of_32768, operator = row
        groups = [key_group(key, most) for most in (128, 4096, 32768)]
        assert groups == [of_128, of_4096, of_32768]
        assert operator_index_for_key_group(128, 4, of_128) == operator

    @pytest.mark.parametrize(
        ("key", "expected"),
        [(0, 94), (1, 86), (-1, 94), (42, 29), (2**32, 86), (2**63 - 1, 108), (-(2**63), 108)],
    )
    def test_longs_are_in_flinks_groups(self, key: int, expected: int) -> None:
        assert key_group_for_key_hash(hash32_long(key), 128) == expected

    @pytest.mark.parametrize(
        ("key", "expected"),
        [
            (True, 77),
            (False, 3),
            (0.0, 94),
            (-0.0, 108),
            (1.0, 71),
            (3.14, 4),
            (math.nan, 41),
            (b"\x01\x02\x03", 97),
        ],
    )
    def test_other_types_are_in_flinks_groups(self, key: Any, expected: int) -> None:
        assert key_group(key, 128) == expected

    def test_keys_are_spread_over_all_groups(self) -> None:
        keys = [0] * 128
        for key in range(100_000):
            keys[key_group(key, 128)] += 1
        assert (min(keys), max(keys)) == (699, 845)

    @pytest.mark.parametrize("max_parallelism", [0, -1, MAX_PARALLELISM + 1])
    def test_a_number_of_groups_out_of_bounds_is_refused(self, max_parallelism: int) -> None:
        with pytest.raises(InvalidRequestError, match="32768"):
            key_group("key", max_parallelism)


class TestRangeOfAnOperator:
    @pytest.mark.parametrize(("numbers", "ends"), RANGES.items(), ids=str)
    def test_it_is_flinks(self, numbers: tuple[int, int], ends: list[int]) -> None:
        max_parallelism, parallelism = numbers
        starts = [0, *(end + 1 for end in ends[:-1])]
        expected = [KeyGroupRange(*both) for both in zip(starts, ends, strict=True)]
        found = [key_group_range(max_parallelism, parallelism, i) for i in range(parallelism)]
        assert found == expected

    @given(parallelisms)
    def test_the_ranges_cover_all_groups_once_and_evenly(self, numbers: tuple[int, int]) -> None:
        max_parallelism, parallelism = numbers
        ranges = [key_group_range(max_parallelism, parallelism, i) for i in range(parallelism)]
        assert [group for one in ranges for group in one] == list(range(max_parallelism))
        lengths = [len(one) for one in ranges]
        assert max(lengths) - min(lengths) <= 1

    @given(parallelisms, st.data())
    def test_the_operator_of_a_group_is_the_one_that_owns_it(
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

    def test_an_operator_or_group_that_there_is_not_is_refused(self) -> None:
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

    def test_a_position_is_one_of_its_groups(self) -> None:
        groups = KeyGroupRange(3, 5)
        assert [groups[index] for index in range(3)] == [3, 4, 5]
        for index in (-1, 3):
            with pytest.raises(IndexError):
                groups[index]
        with pytest.raises(IndexError):
            KeyGroupRange.EMPTY[0]

    @pytest.mark.parametrize("ends", [(1, 0), (5, 3), (0, -1), (-1, 3), (-2, -1)])
    def test_ends_that_are_no_range_are_refused(self, ends: tuple[int, int]) -> None:
        with pytest.raises(InvalidRequestError):
            KeyGroupRange(*ends)

    def test_of_makes_an_empty_range_of_them(self) -> None:
        assert KeyGroupRange.of(5, 3) is KeyGroupRange.EMPTY
        assert KeyGroupRange.of(3, 5) == KeyGroupRange(3, 5)

    def test_an_empty_range_has_no_groups(self) -> None:
        empty = KeyGroupRange.EMPTY
        assert (empty.start_key_group, empty.end_key_group) == (0, -1)
        assert (list(empty), len(empty), 0 in empty, bool(empty)) == ([], 0, False, False)

    @pytest.mark.parametrize("groups", [KeyGroupRange(3, 5), KeyGroupRange.EMPTY], ids=str)
    def test_a_range_can_be_pickled_and_copied(self, groups: KeyGroupRange) -> None:
        assert pickle.loads(pickle.dumps(groups)) == copy.copy(groups) == groups

    @given(key_groups, key_groups, key_groups, key_groups)
    def test_an_intersection_has_the_groups_of_both(self, a: int, b: int, c: int, d: int) -> None:
        one, other = KeyGroupRange.of(a, b), KeyGroupRange.of(c, d)
        common = one.intersection(other)
        assert set(common) == set(one) & set(other)
        assert common == other.intersection(one)
        assert common or common is KeyGroupRange.EMPTY
