"""Columns of keyed rows: NumPy arrays where no value is null and all have a fixed width, else Arrow arrays.

`columns` makes, cuts and compares them, `folding` makes one value of several, `cells` makes Python values of them.
All know rows by position alone, and nothing of keys.
"""

from holdfast.backends.keyed.columns.cells import cells_of, column_of
from holdfast.backends.keyed.columns.columns import (
    Column,
    Rows,
    concatenated,
    cut,
    from_arrow,
    plain_type,
    same_rows,
    side_by_side,
    take,
    take_arrow,
    take_or_null,
    to_arrow,
    values_of_rows,
    whole,
)
from holdfast.backends.keyed.columns.folding import fold_behind, fold_values, folded

__all__ = [
    "Column",
    "Rows",
    "cells_of",
    "column_of",
    "concatenated",
    "cut",
    "fold_behind",
    "fold_values",
    "folded",
    "from_arrow",
    "plain_type",
    "same_rows",
    "side_by_side",
    "take",
    "take_arrow",
    "take_or_null",
    "to_arrow",
    "values_of_rows",
    "whole",
]
