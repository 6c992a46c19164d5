"""The aggregates of an operator as users write them, by the names of the output columns."""

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
        by: The column that says which value is the first or the last.
    """

    kind: Kind
    column: str | None = None
    by: str | None = None

    def __str__(self) -> str:
        """The call that makes it; stored with its values, so that a restart knows whether it is the same."""
        column = "" if self.column is None else repr(self.column)
        by = "" if self.by is None else f", by={self.by!r}"
        return f"{self.kind}({column}{by})"

    def accumulators(self, name: str) -> dict[str, KnownFunction]:
        """The stored columns of the aggregate, and how two values of each are combined.

        Args:
            name: The aggregate's name.
        """
        if self.kind == "avg":
            return {f"{name}_sum": "sum", f"{name}_count": "sum"}
        return {name: _FUNCTIONS[self.kind]}

    def accumulators_of_no_rows(self, name: str) -> dict[str, Any]:
        """The stored columns that are not null where there were no rows, and what they are then.

        Args:
            name: The aggregate's name.
        """
        if self.kind == "avg":
            return {f"{name}_count": 0}
        if self.kind == "count":
            return {name: 0}
        return {name: []} if self.kind == "collect" else {}


def operand(accumulator: str) -> str:
    """The column of combined operands that goes into an accumulator."""
    return f"{accumulator}__operand"


def count(column: str | None = None) -> Aggregate:
    """How many rows there are; with a column, how many have a value in it."""
    return Aggregate("count", column)


def sum(column: str) -> Aggregate:  # as in pyspark.sql.functions
    """The sum of a column: of whole numbers a bigint, of decimals ten digits wider. An error if it doesn't fit."""
    return Aggregate("sum", column)


def min(column: str) -> Aggregate:
    """The least value of a column; NaN is the greatest."""
    return Aggregate("min", column)


def max(column: str) -> Aggregate:
    """The greatest value of a column; NaN is the greatest."""
    return Aggregate("max", column)


def avg(column: str) -> Aggregate:
    """The mean of a column: a double, of decimals a decimal with four more digits."""
    return Aggregate("avg", column)


def first(column: str, *, by: str) -> Aggregate:
    """The value of a column in the row that is first by another one, such as a time.

    Rows without a value of `by` don't count. Where several rows are first, the least value is taken, so that
    the order in which rows arrive doesn't matter.
    """
    return Aggregate("first", column, by)


def last(column: str, *, by: str) -> Aggregate:
    """The value of a column in the row that is last by another one. All else is as for `first`: here the greatest is taken."""
    return Aggregate("last", column, by)


def collect(column: str) -> Aggregate:
    """A list of all values of a column that are not null, in no particular order. It grows with each value."""
    return Aggregate("collect", column)


def approx_count_distinct(column: str) -> Aggregate:
    """About how many distinct values a column has, null not counted; two thirds of the results are within 2 %.

    A sketch of them is kept, of 4 KiB at most. Spark combines the rows of a key, always: there is no
    `combine=False`. It needs `holdfast[sketches]` on the driver and on executors.
    """
    return Aggregate("approx_count_distinct", column)


def need_combining(aggregates: Mapping[str, Aggregate]) -> list[str]:
    """The names of aggregates that Spark alone makes of rows: sketches."""
    return [name for name, known in aggregates.items() if known.kind == "approx_count_distinct"]


def check_aggregates(aggregates: Mapping[str, Aggregate], others: Collection[str]) -> None:
    """Refuse what are no aggregates, and names that collide.

    Args:
        aggregates: The aggregates by name.
        others: Names of the other columns of results.

    Raises:
        InvalidRequestError: There are none, or one is none, or two columns would have one name, or a
            package is missing that one needs.
    """
    if not aggregates:
        raise InvalidRequestError("there are no aggregates; give some, such as orders=count()")
    for name, aggregate in aggregates.items():
        if not isinstance(aggregate, Aggregate):
            message = (
                f"aggregate {name!r} is a {type(aggregate).__name__}; make it by the functions of "
                "holdfast.spark.aggregates, such as sum('amount')"
            )
            raise InvalidRequestError(message)
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
            message = (
                f"aggregates would make several columns {repeated}, beside {[*others]}; the mean of a "
                "column is stored as its sum and count: give an aggregate another name"
            )
            raise InvalidRequestError(message)


def columns_of(aggregates: Mapping[str, Aggregate]) -> list[str]:
    """The columns that are aggregated, none of them twice."""
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
        message = f"rows have no columns {missing}, which are aggregated; they have {[*names]}"
        raise InvalidRequestError(message)
