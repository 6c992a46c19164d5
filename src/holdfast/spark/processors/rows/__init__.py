"""Rows of Spark, in and out; `frames/` does the same for processors of pandas.

input_of_keys   what a processor is given, key by key; the settings of both flavours
rows_out        what it gives, as batches of the output schema
"""

from holdfast.spark.processors.rows.input_of_keys import (
    InputOfKeys,
    InputSettings,
    RowsOfKeys,
    in_zone,
    values_in_rows,
)
from holdfast.spark.processors.rows.rows_out import RowsOut

__all__ = [
    "InputOfKeys",
    "InputSettings",
    "RowsOfKeys",
    "RowsOut",
    "in_zone",
    "values_in_rows",
]
