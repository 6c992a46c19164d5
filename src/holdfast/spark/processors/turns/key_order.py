"""Keys in the order in which Spark hands them to processors, and the rows of each."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from holdfast.backends.arrow import order_of
from holdfast.spark.processors.turns.current_key import Numbers


def ascending(columns: Sequence[pa.Array]) -> Numbers:
    """The rows of key columns, ascending: null first, NaN last, text by its bytes.

    Keys of types that Arrow can't sort, such as structs, stay as they are.
    """
    table: dict[str, pa.Array] = {}
    for number, column in enumerate(columns):
        # Where Arrow puts nulls, and NaN beside them, is of no matter then.
        if column.null_count:
            table[f"{number} is there"] = column.is_valid()
        if types.is_floating(column.type):
            table[f"{number} is no number"] = pc.is_nan(column)
        table[f"{number}"] = column
    try:
        order = pc.sort_indices(pa.table(table), [(name, "ascending") for name in table])
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowInvalid):
        return np.arange(len(columns[0]))
    return order.to_numpy().astype(np.int64)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Turns:
    """The rows of each turn.

    Attributes:
        rows: Positions of rows, turn by turn, in their order of arrival.
        bounds: Where in `rows` each turn begins, and where the last one ends.
    """

    rows: Numbers
    bounds: list[int]

    @classmethod
    def of(cls, turns: Numbers, count: int) -> "Turns":
        """The rows of each of `count` turns, by the turn of each row."""
        ends = np.cumsum(np.bincount(turns, minlength=count))
        return cls(order_of(turns, count), [0, *ends.tolist()])
