"""The clock that tests move."""

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


def test_each_look_at_the_time_of_day_may_take_some_of_it() -> None:
    clock = ManualClock(tick_ms=2)
    assert clock.now_ms() + 2 == clock.now_ms()


def test_the_clock_of_the_machine_is_the_same_one_after_pickling() -> None:
    assert pickle.loads(pickle.dumps(SYSTEM_CLOCK)) is SYSTEM_CLOCK
    assert SYSTEM_CLOCK.monotonic_s() <= SYSTEM_CLOCK.monotonic_s()
