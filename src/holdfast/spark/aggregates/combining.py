"""The operands of aggregates, prepared from the rows of a batch in Spark's JVM.

Rows are either combined to one row of each key, with a column for each accumulator; or they stay single, with only the
key and the aggregated columns. The results are the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, types
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType, StructType

from holdfast.errors import InvalidRequestError
from holdfast.spark.aggregates.functions import (
    Aggregate,
    check_aggregates,
    check_columns,
    columns_of,
    need_combining,
    operand,
)
from holdfast.spark.compat import DATETIME_TYPES
from holdfast.spark.operators import Combination, Grouping, is_collated
from holdfast.spark.sessions import column_named

_PANE = "__holdfast_pane"
_FLOATS = (types.FloatType, types.DoubleType)
_ORDERED: tuple[type[types.DataType], ...] = (
    types.NumericType,
    types.BooleanType,
    *DATETIME_TYPES,
    types.DayTimeIntervalType,
    StringType,
    types.BinaryType,
)
_LG_CONFIG_K = 12
"""A sketch has 2 to this power buckets of a byte each; Spark's default."""


@dataclass(frozen=True, slots=True)
class Panes:
    """Intervals of event time of one length: rows of a pane belong to the same windows.

    Attributes:
        time: The column of event time. Rows without a time are left out.
        length_ms: Length of a pane, milliseconds; None to keep each row's own time.
        offset_ms: Start of a pane, milliseconds since 1970.
        gap: The column with the gap of sessions; rows of a pane have the same gap.
    """

    time: str
    length_ms: int | None = None
    offset_ms: int = 0
    gap: str | None = None

    @property
    def columns(self) -> list[str]:
        """The columns that the operator needs for windows."""
        return [self.time] if self.gap is None else [self.time, self.gap]

    @property
    def start(self) -> Column:
        """The start of a row's pane, or its own time."""
        time = column_named(self.time)
        if self.length_ms is None:
            return time
        length, offset = (f"{number} milliseconds" for number in (self.length_ms, self.offset_ms))
        return F.window(time, length, startTime=offset)["start"]


def operands_of(
    rows: DataFrame,
    key: Sequence[str],
    aggregates: Mapping[str, Aggregate],
    *,
    combine: bool = True,
    panes: Panes | None = None,
) -> DataFrame:
    """Prepare the rows of a batch for an operator.

    Args:
        rows: The rows.
        key: The key's columns.
        aggregates: The aggregates by name.
        combine: Whether Spark combines all rows of a key, and of a pane if there are panes, to one row. In a
            large batch it costs another shuffle, of few rows if there are few keys.
        panes: For windows: keep a column of event time.

    Raises:
        InvalidRequestError: Names collide, or a value is not an aggregate, or rows lack a column, or an aggregate
            needs combined rows and `combine` is False.
    """
    return preparation_of(rows, key, aggregates, combine=combine, panes=panes)(rows)


def preparation_of(
    rows: DataFrame,
    key: Sequence[str],
    aggregates: Mapping[str, Aggregate],
    *,
    combine: bool = True,
    panes: Panes | None = None,
) -> Callable[[DataFrame], DataFrame]:
    """Return `operands_of` as a function for all batches with the schema of these rows.

    Columns are made once, because each takes several calls to the JVM. Arguments and errors of `operands_of`.
    """
    of_windows = [] if panes is None else panes.columns
    check_aggregates(aggregates, [*key, *of_windows])
    _check_columns(aggregates, rows)
    sketches = need_combining(aggregates)
    if sketches and not combine:
        raise InvalidRequestError(
            f"aggregates {sketches} count distinct values, which only Spark can combine; leave out combine=False, or "
            "move them to a separate operator"
        )
    condition = None if panes is None else column_named(panes.time).isNotNull()
    names = dict.fromkeys([*key, *of_windows, *columns_of(aggregates)])
    columns = [column_named(name) for name in names]
    if not combine:
        return lambda rows: (rows if condition is None else rows.where(condition)).select(*columns)
    groups = {name: column_named(name) for name in (*key, *of_windows)}
    if panes is not None:
        # Aggregates may be of the time itself, so the column keeps its name until they are made.
        columns.append(panes.start.alias(_PANE))
        groups[panes.time] = F.col(_PANE)
    kinds = {field.name: field.dataType for field in rows.schema}
    operands = {
        operand(accumulator): expression
        for name, aggregate in aggregates.items()
        for accumulator, expression in _combining(name, aggregate, kinds).items()
    }
    return Combination(condition=condition, columns=columns, groups=groups, values=operands)


def aggregate_rows(
    rows: DataFrame, key: Sequence[str], aggregates: Mapping[str, Aggregate]
) -> DataFrame:
    """Aggregate rows with Spark only; the result has the schema of the operator's results. Errors of `operands_of`."""
    check_aggregates(aggregates, key)
    _check_columns(aggregates, rows)
    results = {name: _native(aggregate) for name, aggregate in aggregates.items()}
    groups = {name: column_named(name) for name in key}
    return Grouping.of([*groups.values()], groups | results)(rows)


def _check_columns(aggregates: Mapping[str, Aggregate], rows: DataFrame) -> None:
    """Refuse rows that lack a column, or have one of an unsupported type. Raises `InvalidRequestError`."""
    check_columns(aggregates, rows.columns)
    kinds = {field.name: field.dataType for field in rows.schema}
    for aggregate in aggregates.values():
        for column in filter(None, (aggregate.column, aggregate.by)):
            problem = _problem(aggregate, kinds[column])
            if problem:
                raise InvalidRequestError(f"{aggregate.kind} of column {column!r}: {problem}")


def _problem(aggregate: Aggregate, kind: DataType) -> str:
    """Describe why a type can't be aggregated, with the way out; empty if it can."""
    has_type = f"it has type {kind.simpleString()}"
    if aggregate.kind in {"count", "collect"}:
        return ""
    if aggregate.kind in {"sum", "avg"}:  # Spark would convert text and times to numbers
        return (
            ""
            if isinstance(kind, types.NumericType)
            else f"{has_type}, which is not a number; cast it"
        )
    if aggregate.kind == "approx_count_distinct":
        is_plain = isinstance(kind, (*_ORDERED, types.NullType)) and not is_collated(kind)
        return "" if is_plain else f"{has_type}; make it a string"
    return order_problem(kind)


def order_problem(kind: DataType) -> str:
    """Describe why values of a type have no order in state, with the way out; empty if they have one."""
    has_type = f"it has type {kind.simpleString()}"
    if isinstance(kind, StructType):
        problems = ((field.name, order_problem(field.dataType)) for field in kind)
        return next((f"field {name!r}: {problem}" for name, problem in problems if problem), "")
    if isinstance(kind, StringType) and is_collated(kind):
        return f"{has_type}, and state compares bytes; cast it to string, or use upper(...)"
    if isinstance(kind, _ORDERED):
        return ""
    return f"{has_type}, which has no order in state; aggregate a part of it, or its to_json"


def _native(aggregate: Aggregate) -> Column:
    if aggregate.column is None:
        return F.count(F.lit(1))
    column = column_named(aggregate.column)
    if aggregate.by is not None:
        return _extreme(aggregate, column)["value"]
    functions = {
        "count": F.count,
        "sum": F.sum,
        "min": F.min,
        "max": F.max,
        "avg": F.avg,
        "collect": F.collect_list,
        "approx_count_distinct": F.approx_count_distinct,
    }
    return functions[aggregate.kind](column)


def _combining(name: str, aggregate: Aggregate, kinds: Mapping[str, DataType]) -> dict[str, Column]:
    """Return Spark's expressions that combine rows, by the names of accumulators."""
    if aggregate.kind == "avg":
        assert aggregate.column is not None  # `avg` requires it
        column = column_named(aggregate.column)
        is_decimal = isinstance(kinds.get(aggregate.column), types.DecimalType)
        total = _sum(name, column) if is_decimal else F.sum(column.cast("double"))
        return dict(zip(aggregate.accumulators(name), (total, F.count(column)), strict=True))
    if aggregate.by is not None:
        return {name: _extreme(aggregate, column_named(aggregate.column or ""))}
    if aggregate.kind == "approx_count_distinct":
        return {name: _sketch(aggregate.column or "", kinds)}
    if aggregate.kind == "sum" and not isinstance(kinds[aggregate.column or ""], _FLOATS):
        return {name: _sum(name, column_named(aggregate.column or ""))}
    return {name: _native(aggregate)}


def _sum(name: str, column: Column) -> Column:
    """Return a sum whose overflow is an error.

    Spark's `sum` fails, wraps around or is null then, depending on `spark.sql.ansi.enabled`.
    """
    message = f"aggregate {name!r}: a sum does not fit its type; cast the column to double, or to a wider decimal"
    overflow = F.when(F.count(column) > 0, F.raise_error(F.lit(message)))
    total = F.try_sum(column)
    return F.coalesce(total, overflow)


def _sketch(name: str, kinds: Mapping[str, DataType]) -> Column:
    """Return a sketch of a column's values, cast to whole numbers, text or bytes, the types that Spark accepts."""
    column, kind = column_named(name), kinds[name]
    if isinstance(kind, (types.BooleanType, types.ByteType, types.ShortType)):
        column = column.cast("int")
    elif isinstance(kind, types.TimestampType):
        column = F.unix_micros(column)  # text would depend on the session's time zone
    elif isinstance(kind, _FLOATS):
        column = (column + F.lit(0.0)).cast("string")  # zeros of both signs are equal
    elif isinstance(kind, types.DecimalType):
        # A cast may write small numbers as 1E-7, depending on spark.sql.ansi.enabled.
        column = F.translate(F.format_number(column, kind.scale), ",", "")
    elif not isinstance(kind, (types.IntegerType, types.LongType, StringType, types.BinaryType)):
        column = column.cast("string")
    return F.hll_sketch_agg(column, F.lit(_LG_CONFIG_K))


def _extreme(aggregate: Aggregate, column: Column) -> Column:
    by = column_named(aggregate.by or "")
    pair = F.when(by.isNotNull(), F.struct(by.alias("by"), column.alias("value")))
    return F.min(pair) if aggregate.kind == "first" else F.max(pair)
