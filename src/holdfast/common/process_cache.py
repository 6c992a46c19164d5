"""Values that a process makes once and keeps, and that don't work in a fork of it."""

import ctypes
import os
import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class ProcessCache(Generic[_Key, _Value]):
    """Values by key, each made when it is first asked for; a fork of the process makes its own.

    There is one for each kind of value, for as long as the process lives.

    Attributes:
        values: The values that this process has made and not dropped.
        lost_values: Whether this process was forked from one that had values. Some libraries can't be
            used again in such a process.
    """

    def __init__(self) -> None:
        self.values: dict[_Key, _Value] = {}
        self._making = threading.Lock()
        self.lost_values = False
        os.register_at_fork(after_in_child=self._forget_parent)

    def get(self, key: _Key, make: Callable[[], _Value]) -> _Value:
        """The value of a key, which is made now if there is none; one value is made at a time.

        An error of `make` is raised, and the next call tries again.
        """
        try:
            return self.values[key]
        except KeyError:
            pass
        with self._making:
            if key not in self.values:
                self.values[key] = make()
            return self.values[key]

    def drop(self, key: _Key) -> None:
        """Forget the value of a key, if there is one: the next `get` makes it anew."""
        self.values.pop(key, None)

    def _forget_parent(self) -> None:
        for value in self.values.values():
            # Threads of the parent are not in this process: to free the value could wait for them for ever.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
        self.lost_values = self.lost_values or bool(self.values)
        self.values = {}
        self._making = threading.Lock()  # whoever held the old one is not in this process
