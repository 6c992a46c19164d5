"""Known aggregates of each key: combined by Spark's JVM, folded into state, given out where they have changed.

    descriptions   count, sum, …: what users write
    combining      on the driver: what the operator takes of a batch, one row a key where that pays
    changes        aggregates that were renamed, added or dropped since the last run
    single_rows    on executors: accumulators of rows that were not combined
    accumulators   the stored form of aggregates, and their results; `windows/` uses it, too
    aggregation    the operator: folds rows into state, yields what has changed

Start with `descriptions`.
"""

from holdfast.spark.aggregates.accumulators import Accumulators
from holdfast.spark.aggregates.aggregation import Aggregation
from holdfast.spark.aggregates.changes import (
    ANOTHER_UID,
    AggregateChanges,
    check_own_states,
)
from holdfast.spark.aggregates.combining import Panes, aggregated, operands_of, preparation_of
from holdfast.spark.aggregates.descriptions import (
    Aggregate,
    approx_count_distinct,
    avg,
    check_aggregates,
    collect,
    count,
    first,
    last,
    max,  # noqa: A004  # as in pyspark.sql.functions
    min,  # noqa: A004
    need_combining,
    sum,  # noqa: A004
)

__all__ = [
    "ANOTHER_UID",
    "Accumulators",
    "Aggregate",
    "AggregateChanges",
    "Aggregation",
    "Panes",
    "aggregated",
    "approx_count_distinct",
    "avg",
    "check_aggregates",
    "check_own_states",
    "collect",
    "count",
    "first",
    "last",
    "max",
    "min",
    "need_combining",
    "operands_of",
    "preparation_of",
    "sum",
]
