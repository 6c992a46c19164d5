"""The clock of tests, and that of the machine."""

import pickle

from holdfast.common import SYSTEM_CLOCK
from holdfast.testing import ManualClock


def test_clock_moves_by_sleep_and_advance() -> None:
    clock = ManualClock()
    began_ms, began_s = clock.now_ms(), clock.monotonic_s()
    clock.sleep(1.5)
    clock.advance(2)
    assert clock.now_ms() - began_ms == 3500
    assert clock.monotonic_s() - began_s == 3.5
    assert clock.sleeps == [1.5]


def test_each_call_of_now_may_advance_the_clock() -> None:
    clock = ManualClock(tick_ms=2)
    assert clock.now_ms() + 2 == clock.now_ms()


def test_system_clock_is_the_same_object_after_pickling() -> None:
    assert pickle.loads(pickle.dumps(SYSTEM_CLOCK)) is SYSTEM_CLOCK
    assert SYSTEM_CLOCK.monotonic_s() <= SYSTEM_CLOCK.monotonic_s()
