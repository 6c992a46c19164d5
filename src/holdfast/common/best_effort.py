"""Actions on all items, however many of them fail."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from holdfast.errors import CheckpointError

_Item = TypeVar("_Item")


def failures_of(action: Callable[[_Item], object], items: Iterable[_Item]) -> list[CheckpointError]:
    """Do an action with every item; returns the failures, in order."""
    failures = []
    for item in items:
        try:
            action(item)
        except CheckpointError as failure:
            failures.append(failure)
    return failures


def raise_first(failures: list[CheckpointError]) -> None:
    """Raise the first failure, if there is one."""
    if failures:
        raise failures[0]
