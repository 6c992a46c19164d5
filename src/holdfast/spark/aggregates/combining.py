"""Rows of a batch become what the operators fold into state, in Spark's JVM.

Either rows are combined there: a row of each key then, with a column for each accumulator. Or they stay single, with no
other columns than those that are aggregated. Whatever the operator gets, it comes to the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DatetimeType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NullType,
    NumericType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from holdfast.errors import InvalidRequestError
from holdfast.spark.aggregates.descriptions import (
    Aggregate,
    check_aggregates,
    check_columns,
    columns_of,
    need_combining,
    operand,
)
from holdfast.spark.operators import is_collated
from holdfast.spark.sessions import column_named

_PANE = "__holdfast_pane"
_GROUP, _RESULT = "__holdfast_group_", "__holdfast_result_"
_FLOATS = (FloatType, DoubleType)
_ORDERED = (
    NumericType,
    BooleanType,
    DatetimeType,
    DayTimeIntervalType,
    StringType,
    BinaryType,
)
_LG_CONFIG_K = 12
"""A sketch has 2 to this power buckets of a byte each; Spark's default."""


@dataclass(frozen=True, slots=True)
class Panes:
    """Pieces of time of one length: rows of a pane belong to the same windows.

    Attributes:
        time: The column of event time. Rows without a time are left out.
        length_ms: How long a pane is, milliseconds; None to keep each row's own time.
        offset_ms: Where panes begin, from 1970 on.
    """

    time: str
    length_ms: int | None = None
    offset_ms: int = 0

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
    also: Sequence[str] = (),
) -> DataFrame:
    """The rows of a batch that operators need, combined where that pays.

    Args:
        rows: The rows.
        key: The key's columns.
        aggregates: The aggregates by name.
        combine: Whether Spark makes one row of all rows of a key, and of a pane if there are some. It costs a
            shuffle more, of few rows if there are few keys.
        panes: For windows: there is a column of event time as well.
        also: Other columns to keep, and to group by if rows are combined.

    Raises:
        InvalidRequestError: Names collide, or something is no aggregate, or rows lack a column, or an aggregate
            needs rows to be combined and they shall not be.
    """
    prepare = preparation_of(rows, key, aggregates, combine=combine, panes=panes, also=also)
    return prepare(rows)


def preparation_of(
    rows: DataFrame,
    key: Sequence[str],
    aggregates: Mapping[str, Aggregate],
    *,
    combine: bool = True,
    panes: Panes | None = None,
    also: Sequence[str] = (),
) -> Callable[[DataFrame], DataFrame]:
    """What `operands_of` does, as a function for all batches whose rows have the schema of these.

    Columns are made here, once: each is some calls to the JVM. Arguments and errors are those of `operands_of`.
    """
    by = [*also, *key]
    times = [panes.time] if panes is not None else []
    check_aggregates(aggregates, [*by, *times])
    _check_columns(aggregates, rows)
    sketches = need_combining(aggregates)
    if sketches and not combine:
        message = (
            f"aggregates {sketches} count distinct values, which Spark combines before rows come to Python; "
            "leave out combine=False, or give them an operator of their own"
        )
        raise InvalidRequestError(message)
    if not combine:
        names = dict.fromkeys([*by, *times, *columns_of(aggregates)])
        columns = [column_named(name) for name in names]
        return lambda rows: _with_times(rows, panes).select(*columns)
    groups = {name: column_named(name) for name in by}
    types = {field.name: field.dataType for field in rows.schema}
    accumulators = {
        operand(accumulator): expression
        for name, aggregate in aggregates.items()
        for accumulator, expression in _combined(name, aggregate, types).items()
    }
    if panes is None:
        return lambda rows: _grouped(rows, groups, accumulators)
    groups[panes.time] = F.col(_PANE)

    def combined(rows: DataFrame) -> DataFrame:
        # Aggregates may be of the time itself, so that it keeps its name until they are made.
        timed = _with_times(rows, panes).withColumn(_PANE, panes.start)
        return _grouped(timed, groups, accumulators)

    return combined


def _grouped(
    rows: DataFrame, groups: Mapping[str, Column], aggregates: Mapping[str, Column]
) -> DataFrame:
    """A row for each group, with columns of these names.

    The columns of groups are selected like aggregates: by `spark.sql.retainGroupColumns` Spark has them or not.
    """
    named = {
        **{f"{_GROUP}{number}": column for number, column in enumerate(groups.values())},
        **{f"{_RESULT}{number}": column for number, column in enumerate(aggregates.values())},
    }
    grouped = rows.groupBy(*groups.values()).agg(
        *(column.alias(name) for name, column in named.items())
    )
    names = [*groups, *aggregates]
    return grouped.select(
        *(F.col(made).alias(name) for made, name in zip(named, names, strict=True))
    )


def _with_times(rows: DataFrame, panes: Panes | None) -> DataFrame:
    return rows if panes is None else rows.where(column_named(panes.time).isNotNull())


def aggregated(
    rows: DataFrame, key: Sequence[str], aggregates: Mapping[str, Aggregate]
) -> DataFrame:
    """The rows aggregated by Spark alone, whose schema is that of results.

    Raises:
        InvalidRequestError: Names collide, or something is no aggregate, or rows lack a column or have numbers in none.
    """
    check_aggregates(aggregates, key)
    _check_columns(aggregates, rows)
    results = {name: _native(aggregate) for name, aggregate in aggregates.items()}
    return _grouped(rows, {name: column_named(name) for name in key}, results)


def _check_columns(aggregates: Mapping[str, Aggregate], rows: DataFrame) -> None:
    """Refuse rows that lack a column, or have one of a type that an aggregate is not of. Raises `InvalidRequestError`."""
    check_columns(aggregates, rows.columns)
    types = {field.name: field.dataType for field in rows.schema}
    for aggregate in aggregates.values():
        for column in filter(None, (aggregate.column, aggregate.by)):
            problem = _problem(aggregate, types[column])
            if problem:
                raise InvalidRequestError(f"{aggregate.kind} of column {column!r}: {problem}")


def _problem(aggregate: Aggregate, kind: DataType) -> str:
    """Why values of a type can't be aggregated, and the way out; empty if they can."""
    has_type = f"it has type {kind.simpleString()}"
    if aggregate.kind in {"count", "collect"}:
        return ""
    if aggregate.kind in {"sum", "avg"}:  # Spark would make numbers of text and times
        return "" if isinstance(kind, NumericType) else f"{has_type}, which is no number; cast it"
    if aggregate.kind == "approx_count_distinct":
        is_plain = isinstance(kind, (*_ORDERED, NullType)) and not is_collated(kind)
        return "" if is_plain else f"{has_type}; make it a string"
    if isinstance(kind, StructType):
        problems = ((field.name, _problem(aggregate, field.dataType)) for field in kind)
        return next((f"field {name!r}: {problem}" for name, problem in problems if problem), "")
    if isinstance(kind, StringType) and is_collated(kind):
        return f"{has_type}, and state compares bytes; cast it to string, or upper(...) of it"
    if isinstance(kind, _ORDERED):
        return ""
    return f"{has_type}, which has no order in state; aggregate a part of it, or to_json of it"


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


def _combined(name: str, aggregate: Aggregate, types: Mapping[str, DataType]) -> dict[str, Column]:
    """Spark's expressions that combine rows, by the names of accumulators."""
    if aggregate.kind == "avg":
        assert aggregate.column is not None  # `avg` asks for it
        column = column_named(aggregate.column)
        is_decimal = isinstance(types.get(aggregate.column), DecimalType)
        total = _sum(name, column) if is_decimal else F.sum(column.cast("double"))
        return dict(zip(aggregate.accumulators(name), (total, F.count(column)), strict=True))
    if aggregate.by is not None:
        return {name: _extreme(aggregate, column_named(aggregate.column or ""))}
    if aggregate.kind == "approx_count_distinct":
        return {name: _sketch(aggregate.column or "", types)}
    if aggregate.kind == "sum" and not isinstance(types[aggregate.column or ""], _FLOATS):
        return {name: _sum(name, column_named(aggregate.column or ""))}
    return {name: _native(aggregate)}


def _sum(name: str, column: Column) -> Column:
    """A sum that is an error where it doesn't fit its type.

    By `spark.sql.ansi.enabled` Spark's `sum` is an error, or wraps around, or is null.
    """
    message = f"aggregate {name!r}: a sum does not fit its type; cast the column to double, or to a wider decimal"
    is_lost = F.when(F.count(column) > 0, F.raise_error(F.lit(message)))
    total = F.try_sum(column)
    return F.coalesce(total, is_lost)


def _sketch(name: str, types: Mapping[str, DataType]) -> Column:
    """A sketch of a column's values; Spark takes whole numbers, texts and bytes, so that others become such."""
    column, kind = column_named(name), types[name]
    if isinstance(kind, (BooleanType, ByteType, ShortType)):
        column = column.cast("int")
    elif isinstance(kind, TimestampType):
        column = F.unix_micros(column)  # a text would be of the session's time zone
    elif isinstance(kind, _FLOATS):
        column = (column + F.lit(0.0)).cast("string")  # zeros of both signs are equal
    elif isinstance(kind, DecimalType):
        # A cast writes small numbers as 1E-7 or not, by spark.sql.ansi.enabled.
        column = F.translate(F.format_number(column, kind.scale), ",", "")
    elif not isinstance(kind, (IntegerType, LongType, StringType, BinaryType)):
        column = column.cast("string")
    return F.hll_sketch_agg(column, F.lit(_LG_CONFIG_K))


def _extreme(aggregate: Aggregate, column: Column) -> Column:
    by = column_named(aggregate.by or "")
    pair = F.when(by.isNotNull(), F.struct(by.alias("by"), column.alias("value")))
    return F.min(pair) if aggregate.kind == "first" else F.max(pair)
