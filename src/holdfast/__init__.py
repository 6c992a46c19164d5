"""Holdfast: Flink-grade checkpoints for PySpark."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.backends import iter_state, read_state, states, subtasks

__all__ = ["iter_state", "read_state", "states", "subtasks"]


def __getattr__(name: str) -> Any:
    """Import what is asked for, and Arrow with it, not before."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from holdfast import backends  # noqa: PLC0415

    return getattr(backends, name)
