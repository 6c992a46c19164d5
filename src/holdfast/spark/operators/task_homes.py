"""Executors that Spark prefers for the tasks of operators, so that subtasks find the copies of their state.

Spark has no setting for this, but it prefers to run a task on the executor that caches a partition which the task reads. So
moved rows are joined with cached rows, one for each partition. If the executor of such a row is lost, Spark computes the row
again where the task runs, which is the preferred executor from then on.
"""

from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.spark.operators.partitions import PARTITION, number_at, partition_numbers

_QUERY = "__holdfast_query"

_MIN_EXECUTORS = 2


@dataclass(slots=True)
class TaskHomes:
    """The cached rows of a query, by the number of partitions.

    Attributes:
        query_id: Distinguishes the rows from those of other queries, which may have other executors.
    """

    query_id: str
    _executors: frozenset[str] = frozenset()
    _rows: dict[int, DataFrame] = field(default_factory=dict)

    def update(self, executors: frozenset[str]) -> None:
        """Distribute the tasks again if the application has new executors, so that they get their share."""
        if executors - self._executors:
            for rows in self._rows.values():
                rows.unpersist()
            self._rows.clear()
        self._executors = executors

    def join(self, moved: DataFrame, partitions: int) -> DataFrame:
        """Return rows that were moved by the column `PARTITION`, now the first one, in tasks with preferred executors."""
        if len(self._executors) < _MIN_EXECUTORS:
            return moved
        if partitions not in self._rows:
            self._rows[partitions] = self._cache(moved.sparkSession, partitions)
        rows = self._rows[partitions].hint("shuffle_hash")  # moves nothing, keeps the order of rows
        return moved.join(rows, PARTITION).drop(_QUERY)

    def _cache(self, session: SparkSession, partitions: int) -> DataFrame:
        number = number_at(partition_numbers(partitions), F.col("id")).alias(PARTITION)
        query = F.lit(self.query_id).alias(_QUERY)
        # A single task would write all rows, and Spark would prefer its host for all partitions.
        rows = session.range(0, partitions, 1, partitions).select(number, query)
        moved = rows.repartition(partitions, PARTITION)
        moved.unpersist()  # those of an earlier run of the query in this session
        cached = moved.cache()
        cached.count()  # one task for each, which Spark distributes evenly to the free executors
        return cached
