"""Which program has written a checkpoint."""

from functools import cache
from importlib.metadata import version


@cache  # not when it is imported: executors may have the package without its metadata
def writer() -> str:
    """The name and version of this program, as checkpoints have it."""
    return f"holdfast {version('holdfast')}"
