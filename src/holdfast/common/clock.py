"""The time, which is an argument wherever a guarantee or a test depends on it, and durations as text."""

import re
import time
from typing import Protocol

_DURATION = re.compile(r"([0-9]+)\s*(s|m|min|h|d)", re.IGNORECASE)
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class Clock(Protocol):
    """Reads the time and waits; `SYSTEM_CLOCK` in production, a manual clock in tests."""

    def now_ms(self) -> int:
        """Milliseconds since 1970 UTC; may jump when the machine's clock is set."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary moment in the past; never decreases."""
        ...

    def sleep(self, seconds: float, /) -> None:
        """Wait for a number of seconds."""
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


Moment = tuple[float, float]
"""A time by two clocks in seconds: one stops while the machine is suspended, the other one can be set."""


def moment(clock: Clock) -> Moment:
    """Return the present time by both clocks."""
    return clock.monotonic_s(), clock.now_ms() / 1000


def is_within(seconds: float, since: Moment, until: Moment) -> bool:
    """Return whether fewer seconds have passed between two moments, by both clocks."""
    return all(0 <= end - start < seconds for start, end in zip(since, until, strict=True))


def parse_duration_s(text: str) -> float:
    """Return the seconds of a duration such as `24h`, `90m` or `2 d`. Raises ValueError."""
    matched = _DURATION.fullmatch(text)
    if matched is None:
        raise ValueError(text)
    return int(matched[1]) * _SECONDS[matched[2].lower()]
