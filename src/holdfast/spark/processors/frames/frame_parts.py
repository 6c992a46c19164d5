"""Parts of large frames of pandas, and columns of small ones: by what lies below a frame, several times as fast.

A key of few rows has a frame of its own, in and out, for which pandas' own ways check a hundred times what is known here.
Where a pandas has something else below its frames, its own ways do.
"""

from typing import Any

import numpy as np
import pandas as pd


def part_of_frame(frame: Any, first: int, end: int) -> Any:
    """A frame of its own of consecutive rows, numbered from 0."""
    rows, index = slice(first, end), pd.RangeIndex.from_range(range(end - first))
    try:
        manager = frame._mgr  # noqa: SLF001
        # Copies, because a processor may change them.
        blocks = tuple(block.slice_block_rows(rows).copy() for block in manager.blocks)
        axes = [frame.columns.view(), index]
        copied = type(manager)(blocks, axes, verify_integrity=False)
        return pd.DataFrame._from_mgr(copied, axes=axes)  # noqa: SLF001
    except (AttributeError, TypeError):
        part = frame.iloc[rows].copy()
        part.index = index
        return part


def column_values(frame: Any, number: int) -> Any:
    """A copy of the values of a column, as NumPy has them where it can: the frame may change behind that."""
    try:
        values = frame._get_column_array(number)  # noqa: SLF001
    except AttributeError:
        values = frame.iloc[:, number]
    if isinstance(values.dtype, np.dtype):
        values = values if isinstance(values, np.ndarray) else values.to_numpy()
    elif isinstance(values, pd.Series):
        values = values.array
    return values.copy()
