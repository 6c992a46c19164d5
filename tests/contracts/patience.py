"""How long tests wait for what happens at once on a machine with nothing else to do."""

import time
from collections.abc import Callable

from holdfast.locations.adapters import RetryPolicy

HANGS_S = 300
"""Whatever takes longer hangs. It is less than pytest's own timeout, so that the complaint is of the
one who waits."""

RUN_HANGS_S = 800
"""The same for a process that runs whole jobs."""

PATIENT = RetryPolicy(deadline_s=HANGS_S, first_wait_s=0.001, max_wait_s=0.002)
"""Never gives up in a test."""


def wait_until(happened: Callable[[], object], complaint: Callable[[], str] | str) -> None:
    """Wait for what leaves no other trace than its effect."""
    deadline = time.monotonic() + HANGS_S
    while not happened():
        if time.monotonic() > deadline:
            raise AssertionError(complaint if isinstance(complaint, str) else complaint())
        time.sleep(0.01)
