"""Values, locks and settings of a process: a fork does not inherit its parent's values and locks."""

import ctypes
import gc
import os
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class ProcessCache(Generic[_Key, _Value]):
    """Values by key, each made on first use and kept for the life of the process.

    A forked process starts with an empty cache and makes its own values.

    Attributes:
        values: The cached values of this process.
        was_forked_with_values: Whether the parent process had values when this one was forked. Some
            libraries can't be used again in such a process.
    """

    def __init__(self) -> None:
        self.values: dict[_Key, _Value] = {}
        self._lock = threading.Lock()
        self.was_forked_with_values = False
        os.register_at_fork(after_in_child=self._forget_parent)

    def get(self, key: _Key, make: Callable[[], _Value]) -> _Value:
        """Return the value of a key, and make it if necessary; one value is made at a time.

        An error of `make` is raised, and the next call tries again.
        """
        try:
            return self.values[key]
        except KeyError:
            pass
        with self._lock:
            if key not in self.values:
                self.values[key] = make()
            return self.values[key]

    def drop(self, key: _Key) -> None:
        """Remove the value of a key, if it exists; the next `get` makes a new one."""
        self.values.pop(key, None)

    def _forget_parent(self) -> None:
        for value in self.values.values():
            # The parent's threads don't exist in this process: a destructor could wait for them forever.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
        self.was_forked_with_values = self.was_forked_with_values or bool(self.values)
        self.values = {}
        self._lock = threading.Lock()  # the thread that held the old one does not exist here


class ProcessLock:
    """A lock that is free in a forked process, even if a thread of the parent holds the parent's lock.

    Attributes:
        current: This process's lock, for a `with` block.
    """

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.current = threading.Lock()


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the search for reference cycles: it takes longer than making many objects without cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
