"""Errors that tests expect, told apart as programs tell them."""

from collections.abc import Callable

from holdfast.errors import CheckpointError


def of_kind(kind: str) -> Callable[[CheckpointError], bool]:
    """A check for `pytest.raises`: whether an error has this kind."""
    return lambda error: error.kind == kind
