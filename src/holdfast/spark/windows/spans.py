"""Windows of keys by their namespaces in state, and the windows that need no state: tumbling and sliding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.keyed import Keys
from holdfast.spark.windows.assigners import FixedWindows, Times


@dataclass(frozen=True, slots=True)
class Spans:
    """Distinct windows of keys.

    Attributes:
        keys: The key and the namespace of each.
        starts_ms: The start of each, milliseconds.
        ends_ms: The end of each, exclusive, milliseconds.
    """

    keys: Keys
    starts_ms: Times
    ends_ms: Times

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, chosen: npt.NDArray[np.bool_]) -> "Spans":
        """Return the chosen windows, each with itself as its only row."""
        indices = np.flatnonzero(chosen)
        return Spans(self.keys.take(indices), self.starts_ms[indices], self.ends_ms[indices])


class WindowState(Protocol):
    """A reducing state of windows, by arrays."""

    def get(self, keys: Keys, /) -> pa.Array:
        """Return the state of each window; null where a window has no state."""
        ...

    def add(self, keys: Keys, values: pa.Array, /) -> None:
        """Add a value for each row."""
        ...

    def clear(self, keys: Keys, /) -> None:
        """Delete the state of windows."""
        ...


class WindowTimers(Protocol):
    """The timers of windows, by arrays."""

    def register(self, keys: Keys, times_ms: Times, indices: npt.NDArray[np.int64], /) -> None:
        """Register a timer for each index."""
        ...

    def delete(self, keys: Keys, times_ms: Times, indices: npt.NDArray[np.int64], /) -> None:
        """Delete timers."""
        ...


@dataclass(frozen=True, slots=True)
class Assigned:
    """The windows that some rows belong to.

    Attributes:
        rows: For each pair of a row and a window, the row.
        spans: The distinct windows; the rows of their keys are these pairs.
    """

    rows: npt.NDArray[np.int64]
    spans: Spans


class Windows(Protocol):
    """The windows of all keys. In a batch `assign` is called first, `forget` last."""

    @property
    def namespace(self) -> pa.Schema:
        """The namespace of a window in state."""
        ...

    def assign(self, keys: Keys, times_ms: Times, expired_ms: int) -> Assigned:
        """Assign a batch's rows to windows, which exist from now on.

        Args:
            keys: The keys of the batch.
            times_ms: The time of each row.
            expired_ms: Windows with an end up to this are expired. Rows that have no other window are left out.
        """
        ...

    def look_up(self, keys: Keys, namespace: Sequence[pa.Array]) -> Assigned:
        """Look up windows by their namespaces, a row for each; windows that don't exist are left out.

        Args:
            keys: The keys of the rows.
            namespace: The namespace of each row.
        """
        ...

    def forget(self, spans: Spans) -> None:
        """Forget expired windows."""
        ...


def in_namespaces(keys: Keys, indices: npt.NDArray[np.int64], columns: Sequence[Times]) -> Keys:
    """Return the distinct pairs of a key and a namespace of whole numbers.

    Args:
        keys: The keys.
        indices: The key of each row.
        columns: The namespace of each row.
    """
    return keys.with_columns(indices, [pa.array(column, pa.int64()) for column in columns])


class FixedSpans:
    """Tumbling and sliding windows, whose namespace is the window itself."""

    namespace = pa.schema([("start", pa.int64()), ("end", pa.int64())])

    def __init__(self, windows: FixedWindows) -> None:
        self._windows = windows

    def assign(self, keys: Keys, times_ms: Times, expired_ms: int) -> Assigned:
        rows, starts = self._windows.assign(times_ms)
        lives = starts + self._windows.size_ms > expired_ms
        if not lives.all():
            rows, starts = rows[lives], starts[lives]
        ends = starts + self._windows.size_ms
        return _with_bounds(rows, in_namespaces(keys, keys.codes[rows], [starts, ends]))

    def look_up(self, keys: Keys, namespace: Sequence[pa.Array]) -> Assigned:
        rows = np.arange(len(keys.codes))
        return _with_bounds(rows, keys.with_columns(keys.codes, namespace))

    def forget(self, spans: Spans) -> None:
        pass


def _with_bounds(rows: npt.NDArray[np.int64], windows: Keys) -> Assigned:
    starts, ends = (column.to_numpy() for column in windows.columns[-2:])
    return Assigned(rows, Spans(windows, starts, ends))
