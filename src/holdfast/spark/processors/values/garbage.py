"""Making many objects at once, without Python's search for circles among them, which takes longer than to make them."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def many_objects() -> Iterator[None]:
    """In the block no circles of garbage are looked for; it should run no code of users."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
