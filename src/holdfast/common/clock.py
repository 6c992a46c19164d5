"""The time, handed in as an argument wherever a guarantee or a test depends on it."""

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time and waits; `SYSTEM_CLOCK` in production, a manual clock in tests."""

    def now_ms(self) -> int:
        """Milliseconds since 1970 UTC; may jump when somebody sets the clock."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since some moment in the past; never goes back."""
        ...

    def sleep(self, seconds: float, /) -> None:
        """Wait that many seconds."""
        ...


class _SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float, /) -> None:
        time.sleep(seconds)

    def __reduce__(self) -> str:
        return "SYSTEM_CLOCK"


SYSTEM_CLOCK: Clock = _SystemClock()
"""The clock of this machine."""
