"""A clock for tests, which only moves on demand."""


class ManualClock:
    """A `Clock` that only moves when code sleeps with it, or `advance` is called.

    Args:
        tick_ms: Milliseconds that pass at each call of `now_ms`.

    Attributes:
        sleeps: Length of each sleep in seconds.
    """

    def __init__(self, *, tick_ms: int = 0) -> None:
        self.sleeps: list[float] = []
        self._tick_ms = tick_ms
        self._passed_s = 0.0

    def now_ms(self) -> int:
        self.advance(self._tick_ms / 1000)
        return 1_700_000_000_000 + round(self._passed_s * 1000)

    def monotonic_s(self) -> float:
        return self._passed_s

    def sleep(self, seconds: float, /) -> None:
        self.sleeps.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move the time forward."""
        self._passed_s += seconds
