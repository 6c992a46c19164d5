"""Fixed values of the hash that rows of keyed state are sorted by: stored state depends on them."""

import numpy as np
import pyarrow as pa
import pytest

from holdfast.backends.keys import xxhash64
from holdfast.errors import InvalidRequestError


def signed_hashes(*columns: pa.Array) -> list[int]:
    numbers: list[int] = xxhash64(columns).view(np.int64).tolist()
    return numbers


def test_hashes_match_the_documentation_of_spark() -> None:
    row = pa.array(["Spark"]), pa.array([[123]], pa.list_(pa.int32())), pa.array([2], pa.int32())
    assert signed_hashes(*row) == [5602566077635097486]


def test_hashes_of_all_types_are_stable() -> None:
    assert signed_hashes(pa.array([0, -1, 42])) == [
        -5252525462095825812,
        3858142552250413010,
        -6876166290308861218,
    ]
    assert signed_hashes(pa.array([0, 42], pa.int32())) == [
        3614696996920510707,
        -387659249110444264,
    ]
    texts = ["", "a", "user-1", "x" * 32, "x" * 100]
    assert signed_hashes(pa.array(texts)) == [
        -7444071767201028348,
        -8582455328737087284,
        3245521771936779939,
        1299777543150008824,
        365730103971579591,
    ]
    assert signed_hashes(pa.array([1.5, float("nan")])) == [
        7738255526519901366,
        -3127944061524951246,
    ]
    assert signed_hashes(pa.array([True, None])) == [-6698625589789238999, 42]


def test_texts_of_equal_length_have_the_hashes_of_mixed_ones() -> None:
    texts = [f"{number:045d}" for number in range(9)]
    assert signed_hashes(pa.array(texts)) == signed_hashes(pa.array([*texts, "short"]))[:-1]


def test_columns_of_no_length_or_of_several_are_refused() -> None:
    for columns in [(), (pa.array([1]), pa.array([1, 2]))]:
        with pytest.raises(InvalidRequestError, match="equal length"):
            xxhash64(columns)
