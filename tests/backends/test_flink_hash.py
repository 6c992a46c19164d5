"""Hash codes of Java and key groups of Flink, compared with results of Java and Flink."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.backends.keys import (
    MAX_PARALLELISM,
    flink_key_groups,
    java_hash,
    operator_index_for_key_group,
)
from holdfast.backends.keys.key_groups import flink_murmur
from holdfast.errors import InvalidRequestError
from holdfast.flink.serializers.hash_codes import (
    of_booleans,
    of_floats,
    of_ints,
    of_longs,
    of_texts,
)

# For each int: the key, flink_murmur, its key group of 128, of 4096 and of 32768, and the operator of 4 that owns the
# group of 128.
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

# For each string: the key, java_hash, flink_murmur, its key group of 128 and of 4096, and the operator of 4.
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


class TestHashCodes:
    def test_murmur_of_ints_matches_flink(self) -> None:
        keys = np.array([row[0] for row in INTS])
        expected = [row[1] for row in INTS]
        assert flink_murmur(keys).tolist() == expected
        assert flink_murmur(keys & 0xFFFFFFFF).tolist() == expected

    @pytest.mark.exhaustive
    def test_murmur_of_two_million_ints_matches_flink(self) -> None:
        *mixed, last = flink_murmur(np.arange(-1_000_000, 1_000_001)).tolist()
        checksum = 0
        for number in mixed:
            checksum = checksum * 31 + number & 0xFFFF_FFFF_FFFF_FFFF
        assert checksum == 2332442025218954414
        checksum = checksum * 31 + last & 0xFFFF_FFFF_FFFF_FFFF
        assert checksum - (1 << 64) == -1481273510923324381

    @given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1))
    def test_murmur_is_never_negative(self, codes: list[int]) -> None:
        mixed = flink_murmur(np.array(codes))
        assert 0 <= mixed.min() <= mixed.max() < 2**31

    def test_strings_hash_as_in_java(self) -> None:
        codes = of_texts(pa.array([row[0] for row in STRINGS]))
        assert codes.tolist() == [row[1] for row in STRINGS]
        assert flink_murmur(codes).tolist() == [row[2] for row in STRINGS]
        assert flink_key_groups(codes, 128).tolist() == [row[3] for row in STRINGS]
        assert flink_key_groups(codes, 4096).tolist() == [row[4] for row in STRINGS]
        assert [operator_index_for_key_group(128, 4, row[3]) for row in STRINGS] == [
            row[5] for row in STRINGS
        ]

    def test_lone_surrogate_hashes_as_in_java(self) -> None:
        assert java_hash("\ud83d") == 0xD83D

    @pytest.mark.parametrize(
        ("keys", "expected"),
        [
            ([2**31 - 1, 0, 1], [2**31 - 1, 0, 1]),
            ([2**31, 2**32, -(2**31) - 1], [-(2**31), 1, -(2**31)]),
            ([2**63 - 1, -(2**63)], [-(2**31), -(2**31)]),
        ],
    )
    def test_longs_hash_as_in_java(self, keys: list[int], expected: list[int]) -> None:
        assert of_longs(pa.array(keys, pa.int64())).tolist() == expected

    def test_ints_booleans_and_doubles_hash_as_in_java(self) -> None:
        assert of_ints(pa.array([2**31 - 1, -(2**31)])).tolist() == [2**31 - 1, -(2**31)]
        assert of_booleans(pa.array([True, False])).tolist() == [1231, 1237]
        doubles = pa.array([0.0, -0.0, 1.0, math.nan, -math.nan])
        expected = [0, -(2**31), 1072693248, 2146959360, 2146959360]
        assert of_floats(doubles).tolist() == expected

    @given(st.lists(st.integers(0, 2**31 - 1), min_size=1))
    def test_nonnegative_longs_hash_as_ints(self, keys: list[int]) -> None:
        assert of_longs(pa.array(keys, pa.int64())).tolist() == keys
        negative = pa.array([-key - 1 for key in keys], pa.int64())
        assert of_longs(negative).tolist() == keys
        assert of_ints(negative).tolist() == negative.to_pylist()

    @given(st.text())
    def test_hash_of_a_string_is_a_signed_32_bit_integer(self, key: str) -> None:
        assert -(2**31) <= java_hash(key) < 2**31


class TestKeyGroup:
    def test_ints_are_in_the_groups_of_flink(self) -> None:
        codes = of_ints(pa.array([row[0] for row in INTS]))
        for column, max_parallelism in ((2, 128), (3, 4096), (4, 32768)):
            expected = [row[column] for row in INTS]
            assert flink_key_groups(codes, max_parallelism).tolist() == expected
        for row in INTS:
            assert operator_index_for_key_group(128, 4, row[2]) == row[5]

    @pytest.mark.parametrize(
        ("codes", "expected"),
        [
            (
                of_longs(pa.array([0, 1, -1, 42, 2**32, 2**63 - 1, -(2**63)])),
                [94, 86, 94, 29, 86, 108, 108],
            ),
            (of_booleans(pa.array([True, False])), [77, 3]),
            (of_floats(pa.array([0.0, -0.0, 1.0, 3.14, math.nan])), [94, 108, 71, 4, 41]),
        ],
        ids=["longs", "booleans", "doubles"],
    )
    def test_other_types_are_in_the_groups_of_flink(self, codes: Any, expected: list[int]) -> None:
        assert flink_key_groups(codes, 128).tolist() == expected

    def test_keys_are_spread_over_all_groups(self) -> None:
        counts = np.bincount(flink_key_groups(np.arange(100_000), 128))
        assert (len(counts), counts.min(), counts.max()) == (128, 699, 845)

    @pytest.mark.parametrize("max_parallelism", [0, -1, MAX_PARALLELISM + 1])
    def test_max_parallelism_out_of_bounds_is_refused(self, max_parallelism: int) -> None:
        with pytest.raises(InvalidRequestError, match="32768"):
            flink_key_groups(np.zeros(1, np.int32), max_parallelism)
