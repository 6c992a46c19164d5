"""What every type of values can do, and the error for what is no value of it."""

from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.spark.processors.values.column_objects import objects_of


class NoValueError(Exception):
    """An object is no value of the type.

    Args:
        value: The object.
        type_name: What it should be.
        path: Where it is inside of what was given: names of fields, from the inside.
    """

    def __init__(self, value: Any, type_name: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(value, type_name, path)
        self.value = value
        self.type_name = type_name
        self.path = path

    def inside(self, field: str) -> "NoValueError":
        """The same error, of what the value is a part of."""
        return NoValueError(self.value, self.type_name, (*self.path, field))

    def __str__(self) -> str:
        where = f"field {'.'.join(reversed(self.path))!r} " if self.path else "it "
        return f"{where}has type {self.type_name}, and was given {self.value!r} of type {type(self.value).__name__}"


class ValueType:
    """A type whose values are Python's own, immutable, and nothing but what Arrow makes of the column.

    Attributes:
        arrow: The type of columns.
        name: What Spark calls the type.
        is_immutable: Whether what processors get may be handed out without a copy.
    """

    is_immutable = True

    def __init__(self, arrow: pa.DataType, name: str) -> None:
        self.arrow = arrow
        self.name = name

    def canonical(self, value: Any) -> Any:
        """What a processor will get for what it gives; None for None. Raises `NoValueError`."""
        raise NotImplementedError

    def column(self, values: list[Any]) -> pa.Array:
        """The column of canonical values."""
        column = pa.array(values, self.arrow)
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column

    def objects(self, column: pa.Array) -> list[Any]:
        """The canonical values of a column."""
        return objects_of(column)

    def copied(self, value: Any) -> Any:
        """A copy that a processor may change."""
        return value

    def hashable(self, value: Any) -> Any:
        """What dictionaries can look up: equal where canonical values are."""
        return value


def plain(value: Any) -> Any:
    """A scalar of numpy or pandas as Python's own."""
    if isinstance(value, np.generic):
        return value.tolist()
    for method in ("to_pytimedelta", "to_pydatetime"):
        if hasattr(value, method):
            return getattr(value, method)()
    return value
