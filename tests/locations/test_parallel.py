"""Things that are done several at a time."""

import threading
from concurrent.futures import CancelledError

import pytest
from contracts.patience import HANGS_S

from holdfast.locations.coordination._parallel import check_wanted, in_parallel


def test_results_are_in_order() -> None:
    check_wanted()
    assert in_parallel(lambda number: number * 2, range(20)) == [*range(0, 40, 2)]


def test_what_is_being_done_ends_when_something_else_fails() -> None:
    ended = threading.Event()
    is_begun = threading.Event()

    def action(number: int) -> None:
        if number == 0:
            assert is_begun.wait(HANGS_S)
            raise ValueError("as planned")
        is_begun.set()
        try:
            while True:
                check_wanted()
                threading.Event().wait(0.001)
        except CancelledError:
            ended.set()
            raise

    with pytest.raises(ValueError, match="as planned"):
        in_parallel(action, [0, 1])
    assert ended.is_set()
