"""Known aggregates of each key: combined by Spark's JVM, folded into state, emitted when they have changed.

    functions      count, sum, …: the user's part
    combining      on the driver: prepares the rows of a batch, combined to one row of each key if requested
    changes        aggregates that were renamed, added or dropped since the last run
    aggregation    on executors: the operator, and the stored form of aggregates, which `windows/` uses, too

Start with `functions`.
"""

from holdfast.spark.aggregates.aggregation import Accumulators, Aggregation
from holdfast.spark.aggregates.changes import ANOTHER_UID, AggregateChanges, check_own_states
from holdfast.spark.aggregates.combining import (
    Panes,
    aggregate_rows,
    operands_of,
    order_problem,
    preparation_of,
)
from holdfast.spark.aggregates.functions import (
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
    "aggregate_rows",
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
    "order_problem",
    "preparation_of",
    "sum",
]
