"""Values of the keys of a batch as Python objects: fetched in one look-up, written back in one."""

from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.backends.keyed.keys import Keys
from holdfast.backends.keyed.states.state_rows import ValueRows

UNREAD: Any = object()
"""Stands for a value that nobody has looked up yet."""


class ObjectPage:
    """A value of each key, or None.

    Attributes:
        rows: Where the values lie.
        keys: The keys of the batch, in the page's namespace.
        values: The value of each key; None where there is none, and `UNREAD` before the look-up. The same
            list all the time.
        changed: Which are to be written back: 1, else 0.
        refreshed: Which times start anew when the value is read; None if none does.
    """

    __slots__ = ("_column", "changed", "keys", "refreshed", "rows", "values")

    def __init__(self, rows: ValueRows, keys: Keys) -> None:
        self.rows = rows
        self.keys = keys
        self.values: list[Any] = [UNREAD] * len(keys)
        self.changed = bytearray(len(keys))
        self.refreshed: bytes | None = None
        self._column: pa.Array | None = None

    def give(self, index: int) -> Any:
        """The value of a key, or None, for a caller that may change the object: a copy, or the page has it no longer."""
        value = self.read(index)
        copied, quick_copy = self.rows.form.copied, self.rows.form.quick_copy
        if value is None or copied is None:
            return value
        if self.changed[index] or quick_copy is not None:
            return copied(value)
        self.values[index] = UNREAD
        return value

    def read(self, index: int) -> Any:
        """The value of a key, or None."""
        value = self.values[index]
        if value is UNREAD:
            if self._column is None:
                self.load()
                value = self.values[index]
            else:  # it was given away
                (value,) = self.rows.form.decoded(self._column.slice(index, 1))
                self.values[index] = value
        if self.refreshed is not None and value is not None and self.refreshed[index]:
            self.changed[index] = 1
        return value

    def write(self, index: int, value: Any) -> None:
        """Set the value of a key; None removes it."""
        self.values[index] = value
        self.changed[index] = 1

    def load(self) -> None:
        """Look up the values of all keys that were not written meanwhile."""
        present, column, living = self.rows.peek(self.keys)
        if self.rows.is_refreshed_by_reading:
            self.refreshed = living.astype(np.uint8).tobytes()
        stored = self.rows.form.objects(column, present)
        for index in np.frombuffer(self.changed, np.uint8).nonzero()[0].tolist():
            stored[index] = self.values[index]
        self.values[:] = stored
        self._column = column

    def store(self) -> None:
        changed = np.frombuffer(self.changed, np.uint8).nonzero()[0]
        if not len(changed):
            return
        keys, values = self.keys, self.values
        if len(changed) < len(values):
            keys, values = keys.take(changed), [values[index] for index in changed.tolist()]
        self.rows.put_or_delete(keys, self.encoded(values))

    def encoded(self, values: list[Any]) -> pa.Array:
        """The column of values; null for None. Raises `InvalidRequestError`."""
        return self.rows.form.encoded_or_null(values)
