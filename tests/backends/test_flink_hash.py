import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.backends.keys import MAX_PARALLELISM, operator_index_for_key_group
from holdfast.backends.keys.flink_hash import (
    flink_key_group,
    flink_key_group_of_hash,
    flink_murmur,
    java_hash,
    java_hash_of_long,
)
from holdfast.errors import InvalidRequestError

# Results of Flink's own classes. For ints: the key, flink_murmur, its key group of 128, of 4096 and of
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


class TestJavaHash:
    @pytest.mark.parametrize(("key", "expected"), [row[:2] for row in INTS])
    def test_murmur_is_flinks(self, key: int, expected: int) -> None:
        assert flink_murmur(key) == flink_murmur(key & 0xFFFFFFFF) == expected

    @pytest.mark.exhaustive
    def test_murmur_is_flinks_from_minus_to_plus_a_million(self) -> None:
        checksum = 0
        for key in range(-1_000_000, 1_000_000):
            checksum = checksum * 31 + flink_murmur(key) & 0xFFFF_FFFF_FFFF_FFFF
        assert checksum == 2332442025218954414
        checksum = checksum * 31 + flink_murmur(1_000_000) & 0xFFFF_FFFF_FFFF_FFFF
        assert checksum - (1 << 64) == -1481273510923324381

    @given(st.integers(-(2**31), 2**31 - 1))
    def test_murmur_is_never_negative(self, key_hash: int) -> None:
        assert 0 <= flink_murmur(key_hash) < 2**31

    @pytest.mark.parametrize("row", STRINGS, ids=lambda row: repr(row[0]))
    def test_strings_hash_as_in_java(self, row: tuple[str, int, int, int, int, int]) -> None:
        key, hashed, murmured, of_128, of_4096, operator = row
        assert java_hash(key) == hashed
        assert flink_murmur(hashed) == murmured
        assert (flink_key_group(key, 128), flink_key_group(key, 4096)) == (of_128, of_4096)
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
        assert java_hash(key) == expected

    @given(st.integers(0, 2**31 - 1))
    def test_small_longs_hash_as_ints_if_they_are_not_negative(self, key: int) -> None:
        assert java_hash_of_long(key) == java_hash(key) == key
        assert java_hash_of_long(-key - 1) == key != java_hash(-key - 1)

    @given(st.integers(-(2**63), 2**63 - 1) | st.text() | st.floats() | st.binary() | st.booleans())
    def test_a_hash_has_32_bits_and_a_sign(self, key: Any) -> None:
        assert -(2**31) <= java_hash(key) < 2**31

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
            java_hash(key)
        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize("key", [2**63, -(2**63) - 1])
    def test_a_long_has_64_bits(self, key: int) -> None:
        with pytest.raises(InvalidRequestError, match="64 bits"):
            java_hash_of_long(key)


class TestKeyGroup:
    @pytest.mark.parametrize("row", INTS, ids=lambda row: str(row[0]))
    def test_ints_are_in_flinks_groups(self, row: tuple[int, ...]) -> None:
        key, _, of_128, of_4096, of_32768, operator = row
        groups = [flink_key_group(key, limit) for limit in (128, 4096, 32768)]
        assert groups == [of_128, of_4096, of_32768]
        assert operator_index_for_key_group(128, 4, of_128) == operator

    @pytest.mark.parametrize(
        ("key", "expected"),
        [(0, 94), (1, 86), (-1, 94), (42, 29), (2**32, 86), (2**63 - 1, 108), (-(2**63), 108)],
    )
    def test_longs_are_in_flinks_groups(self, key: int, expected: int) -> None:
        assert flink_key_group_of_hash(java_hash_of_long(key), 128) == expected

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
        assert flink_key_group(key, 128) == expected

    def test_keys_are_spread_over_all_groups(self) -> None:
        keys = [0] * 128
        for key in range(100_000):
            keys[flink_key_group(key, 128)] += 1
        assert (min(keys), max(keys)) == (699, 845)

    @pytest.mark.parametrize("max_parallelism", [0, -1, MAX_PARALLELISM + 1])
    def test_a_number_of_groups_out_of_bounds_is_refused(self, max_parallelism: int) -> None:
        with pytest.raises(InvalidRequestError, match="32768"):
            flink_key_group("key", max_parallelism)
