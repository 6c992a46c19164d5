"""Aggregate functions: count, sum and the like, for users."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.backends.arrow import check_sketches
from holdfast.backends.descriptors import KnownFunction
from holdfast.errors import InvalidRequestError

Kind = Literal[
    "count", "sum", "min", "max", "avg", "first", "last", "collect", "approx_count_distinct"
]

_FUNCTIONS: dict[Kind, KnownFunction] = {
    "count": "sum",
    "sum": "sum",
    "min": "min",
    "max": "max",
    "first": "min",
    "last": "max",
    "collect": "concatenate",
    "approx_count_distinct": "hll_union",
}


@dataclass(frozen=True, slots=True)
class Aggregate:
    """An aggregate of a column; made by `count`, `sum` and the like.

    Attributes:
        kind: The aggregate function.
        column: The column; None for all rows.
        by: The column that orders the rows, for the first or the last value.
    """

    kind: Kind
    column: str | None = None
    by: str | None = None

    def __str__(self) -> str:
        """The call that makes it; stored with its values, so that a restart can compare it."""
        column = "" if self.column is None else repr(self.column)
        by = "" if self.by is None else f", by={self.by!r}"
        return f"{self.kind}({column}{by})"

    def accumulators(self, name: str) -> dict[str, KnownFunction]:
        """Return the stored columns of an aggregate of that name, with the function that combines two values of each."""
        if self.kind == "avg":
            return {f"{name}_sum": "sum", f"{name}_count": "sum"}
        return {name: _FUNCTIONS[self.kind]}

    def defaults(self, name: str) -> dict[str, Any]:
        """Return the values without rows of those stored columns that are not null then."""
        if self.kind == "avg":
            return {f"{name}_count": 0}
        if self.kind == "count":
            return {name: 0}
        return {name: []} if self.kind == "collect" else {}


def operand(accumulator: str) -> str:
    """Return the column of combined operands for an accumulator."""
    return f"{accumulator}__operand"


def count(column: str | None = None) -> Aggregate:
    """The number of rows; with a column, the number of its values that are not null."""
    return Aggregate("count", column)


def sum(column: str) -> Aggregate:  # as in pyspark.sql.functions
    """The sum of a column: of whole numbers a bigint, of decimals ten digits wider. Overflow is an error."""
    return Aggregate("sum", column)


def min(column: str) -> Aggregate:
    """The lowest value of a column; NaN is the greatest."""
    return Aggregate("min", column)


def max(column: str) -> Aggregate:
    """The greatest value of a column; NaN is the greatest."""
    return Aggregate("max", column)


def avg(column: str) -> Aggregate:
    """The mean of a column: a double, of decimals a decimal with four more digits."""
    return Aggregate("avg", column)


def first(column: str, *, by: str) -> Aggregate:
    """The value of a column in the first row by another column, such as a time.

    Rows without a value of `by` don't count. Of several first rows it takes the lowest value, so that
    the order of arrival doesn't matter.
    """
    return Aggregate("first", column, by)


def last(column: str, *, by: str) -> Aggregate:
    """The value of a column in the last row by another column. As `first`, but of several last rows it takes the greatest value."""
    return Aggregate("last", column, by)


def collect(column: str) -> Aggregate:
    """A list of all values of a column that are not null, in no particular order. It grows with each value."""
    return Aggregate("collect", column)


def approx_count_distinct(column: str) -> Aggregate:
    """The approximate number of distinct values of a column, without null; two thirds of the results are within 2 %.

    Its state is a sketch of at most 4 KiB. Spark always combines the rows of a key: `combine=False` is
    refused. It needs `holdfast[sketches]` on the driver and on executors.
    """
    return Aggregate("approx_count_distinct", column)


def need_combining(aggregates: Mapping[str, Aggregate]) -> list[str]:
    """Return the names of aggregates that need rows combined by Spark: sketches."""
    return [name for name, known in aggregates.items() if known.kind == "approx_count_distinct"]


def check_aggregates(aggregates: Mapping[str, Aggregate], others: Collection[str]) -> None:
    """Refuse values that are not aggregates, and names that collide, also with other columns of results.

    Raises:
        InvalidRequestError: There are no aggregates, or a value is not an aggregate, or two columns have the same
            name, or a package for an aggregate is not installed.
    """
    if not aggregates:
        raise InvalidRequestError("there are no aggregates; pass some, such as orders=count()")
    for name, aggregate in aggregates.items():
        if not isinstance(aggregate, Aggregate):
            raise InvalidRequestError(
                f"aggregate {name!r} is a {type(aggregate).__name__}; make it with the functions of "
                "holdfast, such as holdfast.sum('amount')"
            )
    if need_combining(aggregates):
        check_sketches()
    names = [*others, *aggregates]
    stored = [*others]
    for name, aggregate in aggregates.items():
        stored += aggregate.accumulators(name)
    for columns in (names, stored):
        lower = [name.lower() for name in columns]
        repeated = sorted({name for name in lower if lower.count(name) > 1})
        if repeated:
            raise InvalidRequestError(
                f"several columns would have the names {repeated}; results also have columns {[*others]}, and the mean of "
                "a column is stored as its sum and count. Give an aggregate another name"
            )


def columns_of(aggregates: Mapping[str, Aggregate]) -> list[str]:
    columns = [
        column
        for aggregate in aggregates.values()
        for column in (aggregate.column, aggregate.by)
        if column is not None
    ]
    return list(dict.fromkeys(columns))


def check_columns(aggregates: Mapping[str, Aggregate], names: Collection[str]) -> None:
    """Refuse rows that lack a column. Raises `InvalidRequestError`."""
    missing = [column for column in columns_of(aggregates) if column not in names]
    if missing:
        message = f"rows have no columns {missing} to aggregate; they have {[*names]}"
        raise InvalidRequestError(message)
