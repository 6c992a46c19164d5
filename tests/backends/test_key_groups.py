import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.backends import MAX_PARALLELISM, default_max_parallelism


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
