"""Eight threads that start at the same moment."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from holdfast.errors import CheckpointConflictError

RACERS = 8


def race(attempt: Callable[[int], object]) -> list[bool]:
    """Run an attempt in all racers at once; returns for each whether it won, that is, met no conflict."""
    start = threading.Barrier(RACERS)

    def wins(racer: int) -> bool:
        start.wait()
        try:
            attempt(racer)
        except CheckpointConflictError:
            return False
        return True

    with ThreadPoolExecutor(RACERS) as pool:
        return list(pool.map(wins, range(RACERS)))
