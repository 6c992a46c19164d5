"""Rows made fast: a class for each list of fields, so that a row needs nothing but its values."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from pyspark.sql import Row


def row_maker(names: Sequence[str]) -> Callable[[Iterable[Any]], Row]:
    """A function that makes rows of these fields of their values.

    What Spark makes is a tuple with an attribute that has the names, and a row looks for a field only after all else
    has failed. Here the names belong to a class derived from `Row`, and fields are its properties, but for those that
    are called like something that tuples and rows have: there `row.count` is the method, as in Spark.
    """
    fields: dict[str, Any] = {
        name: property(itemgetter(position))
        for position, name in reversed(list(enumerate(names)))
        if name.isidentifier() and not hasattr(Row, name) and not name.startswith("__")
    }
    row_class = type(
        "Row", (Row,), {**fields, "__fields__": list(names), "__module__": Row.__module__}
    )
    return partial(tuple.__new__, row_class)
