"""Time limits of waits for events that are immediate on an idle machine."""

import threading
import time
from collections.abc import Callable

from holdfast.locations.adapters import RetryPolicy

HANGS_S = 300
"""Anything that takes longer hangs. It is less than pytest's own timeout, so that the waiting test reports it."""

RUN_HANGS_S = 800
"""The limit for a process that runs whole jobs."""

PATIENT = RetryPolicy(deadline_s=HANGS_S, first_wait_s=0.001, max_wait_s=0.002)
"""Retries for longer than any test takes."""


def wait_until(happened: Callable[[], object], complaint: Callable[[], str] | str) -> None:
    """Poll until a condition is true; the test fails after `HANGS_S`."""
    deadline = time.monotonic() + HANGS_S
    while not happened():
        if time.monotonic() > deadline:
            raise AssertionError(complaint if isinstance(complaint, str) else complaint())
        time.sleep(0.01)


def wait_for_parts() -> None:
    """Wait for uploads of parts that are in progress, because `abort` does not."""
    for thread in threading.enumerate():
        if thread.name.startswith("holdfast-s3-part"):
            thread.join(HANGS_S)
