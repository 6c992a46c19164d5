"""Rows that Spark's JVM combines on the way to their subtasks, so that they are moved only once.

Spark aggregates rows in each task, moves the results by a hash of their group's columns, and aggregates them again. That
moves the rows of a group together, but not the rows of a subtask. So each group gets one more column, its salt, which
is computed such that all groups of a subtask have the same hash. Then no second shuffle is needed. The rows without
data, which every subtask gets, are separate groups.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from holdfast.spark.operators.routing import SUBTASK, Routing, number_at, partition_numbers
from holdfast.spark.prepared import PreparedAggregation, PreparedColumns

_RESULT = "__holdfast_result_"
_ADAPTIVE = "spark.sql.adaptive.enabled"
_PARTITIONS = "spark.sql.shuffle.partitions"

# Of Spark's Murmur3.
_SEED = 42
_C1, _C2 = 0xCC9E2D51, 0x1B873593
_MASK = 0xFFFFFFFF
_INVERSE_C1, _INVERSE_C2 = pow(_C1, -1, 1 << 32), pow(_C2, -1, 1 << 32)


@dataclass(frozen=True, kw_only=True)
class Combination:
    """An aggregation of the rows of a batch, to one row for each group.

    Attributes:
        condition: A condition for the rows to aggregate; None for all of them.
        columns: The columns that groups and aggregates are computed from; each column of the key is among them.
        groups: The columns of groups, by their names in the result.
        values: The aggregates, by their names in the result.
    """

    condition: Column | None
    columns: Sequence[Column]
    groups: Mapping[str, Column]
    values: Mapping[str, Column]

    def __call__(self, rows: DataFrame) -> DataFrame:
        """Return the combined rows, in any partitions."""
        return self._grouping(self.select(rows, self.prepared))

    def select(self, rows: DataFrame, columns: PreparedColumns) -> DataFrame:
        """Return columns of the rows to aggregate."""
        return columns.select(rows if self.condition is None else rows.where(self.condition))

    @cached_property
    def prepared(self) -> PreparedColumns:
        """The columns, prepared for rows with one schema."""
        return PreparedColumns(self.columns)

    @cached_property
    def _grouping(self) -> "Grouping":
        return Grouping.of([*self.groups.values()], self.results)

    @property
    def results(self) -> dict[str, Column]:
        """All columns of the result, by name."""
        return {**self.groups, **self.values}


@dataclass(frozen=True, slots=True)
class Grouping:
    """The aggregation of rows with one schema, to one row for each group. Made once."""

    aggregation: PreparedAggregation
    names: PreparedColumns

    @classmethod
    def of(cls, groups: Sequence[Column], results: Mapping[str, Column]) -> Self:
        """Return the aggregation by some columns, whose result has only the other columns, by name.

        Columns of groups are aggregated for the result, to be independent of `spark.sql.retainGroupColumns`.
        """
        numbered = {f"{_RESULT}{number}": name for number, name in enumerate(results)}
        return cls(
            PreparedAggregation(groups, [results[name].alias(n) for n, name in numbered.items()]),
            PreparedColumns([F.col(n).alias(name) for n, name in numbered.items()]),
        )

    def __call__(self, rows: DataFrame) -> DataFrame:
        return self.names.select(self.aggregation(rows))


@dataclass(frozen=True, slots=True)
class CombinedRouting:
    """The routing of rows with one schema that are combined on the way. Made once, as a `Routing`.

    All groups of a subtask have the same hash, so they are in one partition of any number of partitions.

    Attributes:
        partitions: The number of partitions of an aggregation. It is only used to give subtasks separate partitions.
        columns: The columns for the aggregation, and the mark.
        marks: The rows without data.
        grouping: The aggregation by the columns of groups, mark and salt.
        order: The subtask of a row, to sort rows; None if no partition has rows of several subtasks.
    """

    combination: Combination
    partitions: int
    columns: PreparedColumns
    marks: DataFrame
    grouping: Grouping
    order: Column | None

    @classmethod
    def of(cls, combination: Combination, routing: Routing, rows: DataFrame) -> Self | None:
        """Return the routing of all rows that have the schema of these rows before they are combined.

        `routing` is that of combined rows. None if rows have to be combined first: late rows have to be kept
        apart, or adaptive execution would merge partitions of aggregations, whatever their number.
        """
        conf = rows.sparkSession.conf
        if routing.late_rows is not None or conf.get(_ADAPTIVE) != "false":
            return None
        partitions, parallelism = int(conf.get(_PARTITIONS) or 0), routing.parallelism
        numbers = partition_numbers(partitions)
        hashes = [
            _SEED ^ _mix(numbers[subtask * partitions // parallelism])
            for subtask in range(parallelism)
        ]
        mark = F.col(SUBTASK)
        index = F.pmod(mark, F.lit(parallelism).cast("bigint"))
        groups = [*combination.groups.values(), mark]
        return cls(
            combination=combination,
            partitions=partitions,
            columns=PreparedColumns([*combination.columns, routing.subtask.alias(SUBTASK)]),
            marks=routing.marks_of(combination.select(rows, combination.prepared)),
            grouping=Grouping.of(
                [*groups, _salt(groups, number_at(hashes, index))],
                {**combination.results, SUBTASK: mark},
            ),
            order=index if parallelism > partitions else None,
        )

    def repartition(self, rows: DataFrame, tasks: int) -> DataFrame:
        """Combine rows, and move them and the rows without data to the partitions of their subtasks."""
        marked = self.combination.select(rows, self.columns).union(self.marks)
        routed = self.grouping(marked)
        if self.order is not None:
            routed = routed.sortWithinPartitions(self.order)
        return routed if tasks >= self.partitions else routed.coalesce(tasks)


def _salt(columns: Sequence[Column], mixed: Column) -> Column:
    """Return the int that makes the hash of the columns and itself that of an int `n`, where `mixed` is 42 xor mix(n).

    Murmur3 hashes columns one after the other, from the seed 42: it replaces the hash `h` by f(h xor mix(k)) for
    an int `k`. So the salt is the inverse of mix, of hash(columns) xor 42 xor mix(n). All products fit a bigint.
    """
    difference = F.hash(*columns).bitwiseXOR(mixed).cast("bigint")
    rotated = (difference * F.lit(_to_int32(_INVERSE_C2))).bitwiseAND(F.lit(_MASK))
    high = F.shiftright(rotated, 15)
    low = F.shiftleft(rotated.bitwiseAND(F.lit((1 << 15) - 1)), 17)
    salt = (high.bitwiseOR(low) * F.lit(_to_int32(_INVERSE_C1))).bitwiseAND(F.lit(_MASK))
    return (salt.bitwiseXOR(F.lit(1 << 31)) - F.lit(1 << 31)).cast("int")


def _mix(number: int) -> int:
    """Return an int as Murmur3 mixes it into a hash."""
    product = number * _C1 & _MASK
    return _to_int32((product << 15 | product >> 17) * _C2 & _MASK)


def _to_int32(number: int) -> int:
    return number - (1 << 32) if number >= 1 << 31 else number
