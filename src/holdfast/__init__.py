"""Holdfast: Flink-grade checkpoints for PySpark."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.backends.inspection import iter_state, read_state, states
    from holdfast.spark_progress.tables import subtasks

__all__ = ["iter_state", "read_state", "states", "subtasks"]


def __getattr__(name: str) -> Any:
    """Import what is asked for, and Arrow with it, not before."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = (
        "holdfast.spark_progress.tables" if name == "subtasks" else "holdfast.backends.inspection"
    )
    return getattr(import_module(home), name)
