"""Windows of keys, as state knows them; and what keeps windows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.keyed import Keys
from holdfast.spark.windows.assigning import Times


@dataclass(frozen=True, slots=True)
class Spans:
    """Distinct windows of keys.

    Attributes:
        keys: The key and the namespace of each.
        starts_ms: Where each begins, milliseconds.
        ends_ms: Where each ends, milliseconds; the end does not belong to it.
    """

    keys: Keys
    starts_ms: Times
    ends_ms: Times

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, chosen: npt.NDArray[np.bool_]) -> "Spans":
        """Some of them, each with itself as its only row."""
        indices = np.flatnonzero(chosen)
        return Spans(self.keys.take(indices), self.starts_ms[indices], self.ends_ms[indices])


class WindowState(Protocol):
    """The state of each window, by namespaces: a reducing state, by arrays."""

    def get(self, keys: Keys, /) -> pa.Array:
        """The state of each window; null where there is none."""
        ...

    def add(self, keys: Keys, values: pa.Array, /) -> None:
        """Add a value for each row."""
        ...

    def clear(self, keys: Keys, /) -> None:
        """Forget windows."""
        ...


class TimersOfWindows(Protocol):
    """The timers of windows, by namespaces and by arrays."""

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
    """Knows the windows of all keys. `assign` comes first in a batch, `forget` last."""

    @property
    def namespace(self) -> pa.Schema:
        """The namespace by which state knows a window of a key."""
        ...

    def assign(self, keys: Keys, times_ms: Times, over_ms: int) -> Assigned:
        """The windows of a batch's rows; from now on they are there.

        Args:
            keys: The keys of the batch.
            times_ms: The time of each row.
            over_ms: Windows that end here, or before, are over. Rows that have no others are left out.
        """
        ...

    def known(self, keys: Keys, namespace: Sequence[pa.Array]) -> Assigned:
        """Windows by their namespaces, a row for each; those that are not there are left out.

        Args:
            keys: The keys of the rows, whose windows are asked for.
            namespace: The namespace of each row.
        """
        ...

    def forget(self, spans: Spans) -> None:
        """The windows are over."""
        ...


def in_namespaces(keys: Keys, indices: npt.NDArray[np.int64], columns: Sequence[Times]) -> Keys:
    """The distinct pairs of a key and a namespace of whole numbers.

    Args:
        keys: The keys.
        indices: The key of each row.
        columns: The namespace of each row.
    """
    return keys.with_columns(indices, [pa.array(column, pa.int64()) for column in columns])
