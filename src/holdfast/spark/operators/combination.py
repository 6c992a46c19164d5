"""Rows that Spark's JVM combines to one row of each group before they reach their subtasks.

Either they are combined first, and the results are moved to the subtasks: a shuffle for each step. Or the rows of a small
batch are moved first, and combined where they are. Then Spark needs no second shuffle for the groups, because the
partition of a row is one of the columns of its group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from holdfast.spark.operators.partitions import PARTITION, number_at, partition_numbers
from holdfast.spark.operators.routing import SUBTASK, Routing
from holdfast.spark.operators.task_homes import TaskHomes
from holdfast.spark.prepared import PreparedAggregation, PreparedColumns

_RESULT = "__holdfast_result_"
_ALL_GROUP_COLUMNS = "spark.sql.requireAllClusterKeysForDistribution"


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
        return Grouping.of([*self.groups.values()], {**self.groups, **self.values})


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
    """The routing of rows with one schema that are combined where their subtasks run. Made once, as a `Routing`.

    Rows of subtask i are moved to task i * tasks // parallelism, where rows without data are separate groups.

    Attributes:
        routing: The routing of combined rows.
        grouping: The aggregation by the columns of groups, mark and partition.
        index: Computes the subtask of a combined row.
        marks: The rows without data, without their partition.
    """

    combination: Combination
    routing: Routing
    grouping: Grouping
    index: Column
    marks: DataFrame
    _by_tasks: dict[int, "_Moves"] = field(default_factory=dict, init=False)

    @classmethod
    def of(cls, combination: Combination, routing: Routing, rows: DataFrame) -> Self | None:
        """Return the routing of all rows that have the schema of these rows before they are combined.

        None if rows have to be combined first: late rows have to be kept apart, or a setting makes Spark move
        rows of groups by all columns of the group.
        """
        all_columns = str(rows.sparkSession.conf.get(_ALL_GROUP_COLUMNS, "false"))
        if routing.late_rows is not None or all_columns.lower() != "false":
            return None
        mark = F.col(SUBTASK)
        groups = [*combination.groups.values(), mark, F.col(PARTITION)]
        results = {**combination.groups, **combination.values, SUBTASK: mark}
        return cls(
            combination=combination,
            routing=routing,
            grouping=Grouping.of(groups, results),
            index=F.pmod(mark, F.lit(routing.parallelism).cast("bigint")),
            marks=routing.marks_of(combination.select(rows, combination.prepared)),
        )

    def repartition(self, rows: DataFrame, tasks: int, homes: TaskHomes | None = None) -> DataFrame:
        """Move rows, and the rows without data, to the tasks of their subtasks, and combine them there."""
        if tasks not in self._by_tasks:
            self._by_tasks[tasks] = self._prepare(tasks)
        moves = self._by_tasks[tasks]
        marked = self.combination.select(rows, moves.columns).union(moves.marks)
        moved = moves.partition.repartition(marked, tasks)
        combined = self.grouping(moved if homes is None else homes.join(moved, tasks))
        # The rows of a subtask have to follow each other.
        return combined if moves.order is None else combined.sortWithinPartitions(moves.order)

    def _prepare(self, tasks: int) -> "_Moves":
        parallelism, subtask = self.routing.parallelism, self.routing.subtask
        of_tasks = partition_numbers(tasks)
        numbers = [of_tasks[index * tasks // parallelism] for index in range(parallelism)]
        return _Moves(
            columns=PreparedColumns(
                [
                    *self.combination.columns,
                    subtask.alias(SUBTASK),
                    number_at(numbers, subtask).alias(PARTITION),
                ]
            ),
            marks=self.marks.withColumn(PARTITION, number_at(numbers, self.index)),
            partition=PreparedColumns([F.col(PARTITION)]),
            order=self.index if tasks < parallelism else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moves:
    """The parts of a `CombinedRouting` that depend on the number of tasks.

    Attributes:
        columns: The columns of rows, with mark and partition.
        marks: The rows without data.
        partition: The number that Spark hashes to the partition of a row.
        order: The order of combined rows; None if each task runs one subtask.
    """

    columns: PreparedColumns
    marks: DataFrame
    partition: PreparedColumns
    order: Column | None
