"""Checks of expected errors by their kind, as programs distinguish them."""

from collections.abc import Callable

from holdfast.errors import CheckpointError


def of_kind(kind: str) -> Callable[[CheckpointError], bool]:
    """Return a check for `pytest.raises` that an error has this kind."""
    return lambda error: error.kind == kind
