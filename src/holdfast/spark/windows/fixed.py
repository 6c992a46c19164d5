"""Keeps tumbling and sliding windows: their namespace says all about them."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.keyed import Keys
from holdfast.spark.windows.assigning import FixedWindows, Times
from holdfast.spark.windows.spans import Assigned, Spans, in_namespaces


class FixedSpans:
    """Tumbling and sliding windows.

    Args:
        windows: Which ones.
    """

    namespace = pa.schema([("start", pa.int64()), ("end", pa.int64())])

    def __init__(self, windows: FixedWindows) -> None:
        self._windows = windows

    def assign(self, keys: Keys, times_ms: Times, late_ms: int) -> Assigned:
        rows, starts = self._windows.assign(times_ms)
        lives = starts + self._windows.size_ms > late_ms
        if not lives.all():
            rows, starts = rows[lives], starts[lives]
        ends = starts + self._windows.size_ms
        return _assigned(rows, in_namespaces(keys, keys.codes[rows], [starts, ends]))

    def known(self, keys: Keys, namespace: Sequence[pa.Array]) -> Assigned:
        rows = np.arange(len(keys.codes))
        return _assigned(rows, keys.with_columns(keys.codes, namespace))

    def forget(self, spans: Spans) -> None:
        pass


def _assigned(rows: npt.NDArray[np.int64], windows: Keys) -> Assigned:
    starts, ends = (column.to_numpy() for column in windows.columns[-2:])
    return Assigned(rows, Spans(windows, starts, ends))
