"""How long tests wait for what happens at once on a machine with nothing else to do."""

import time
from collections.abc import Callable
from typing import Any

from holdfast.locations import S3Settings
from holdfast.locations.adapters import RetryPolicy
from holdfast.locations.file_systems import registry
from holdfast.locations.file_systems.fsspec import s3fs_file_system

HANGS_S = 300
"""Whatever takes longer hangs. It is less than pytest's own timeout, so that the complaint is of the
one who waits."""

RUN_HANGS_S = 800
"""The same for a process that runs whole jobs."""

PATIENT = RetryPolicy(deadline_s=HANGS_S, first_wait_s=0.001, longest_wait_s=0.002)
"""Never gives up in a test."""


def be_patient() -> None:
    """Let what the product waits for by default be far too, in this process."""
    _defaults(RetryPolicy)["deadline_s"] = float(HANGS_S)
    for policy in (registry._DEFAULT_POLICY, s3fs_file_system._DEFAULT_POLICY):
        object.__setattr__(policy, "deadline_s", float(HANGS_S))
    # Less, so that a request that hangs is repeated.
    _defaults(S3Settings).update(connect_timeout_s=HANGS_S / 3, read_timeout_s=HANGS_S / 3)


def _defaults(values: type) -> dict[str, Any]:
    found: dict[str, Any] = vars(values)["__init__"].__kwdefaults__
    return found


def wait_until(happened: Callable[[], object], complaint: Callable[[], str] | str) -> None:
    """Wait for what leaves no other trace than its effect."""
    deadline = time.monotonic() + HANGS_S
    while not happened():
        if time.monotonic() > deadline:
            raise AssertionError(complaint if isinstance(complaint, str) else complaint())
        time.sleep(0.01)
