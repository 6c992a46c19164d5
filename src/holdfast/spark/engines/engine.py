"""The interface to Spark of a query with state; Spark Connect and classic sessions implement it."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from holdfast.spark.settings import Settings
from holdfast.spark.subtask import Reports, TaskPayload

if TYPE_CHECKING:  # an installation for Spark Connect may have only pyspark-client
    from pyspark import Broadcast

    from holdfast.spark.engines.jobs import Jobs

_SHUFFLE_CHECKSUMS = (
    "spark.sql.shuffle.orderIndependentChecksum.enabled",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch",
)
_EXCLUDED_RULES = "spark.sql.adaptive.optimizer.excludedRules"
_EMPTY_JOIN_RULE = "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"


@dataclass(frozen=True, slots=True)
class RunningQuery:
    """The streaming query whose `foreachBatch` runs in this thread.

    Attributes:
        query_id: Stays the same for the life of Spark's checkpointLocation.
        run_id: New at each start of the query.
        checkpoint_location: Spark's checkpoint directory of the query.
        name: The name of the query; empty if it has no name.
        execution: The query in Spark's JVM; None with Spark Connect.
    """

    query_id: str
    run_id: str
    checkpoint_location: str
    name: str = ""
    execution: Any = field(default=None, repr=False, compare=False)


class Engine(Protocol):
    """Access to Spark, in the process that runs a query's batches.

    Attributes:
        session: The session of the batch.
    """

    @property
    def session(self) -> SparkSession: ...

    def running_query(self, known: RunningQuery | None = None) -> RunningQuery:
        """Return the query; `known` itself if it is that query, and still the same run.

        Raises `InvalidRequestError` if it is unknown, as outside of `foreachBatch`.
        """
        ...

    def offsets(self, query: RunningQuery, batch_id: int) -> str | None:
        """Return Spark's offset log entry of a batch, the text of its file; None if it does not exist."""
        ...

    def read(self, query: RunningQuery, name: str) -> str | None:
        """Read a small file of Spark's checkpoint directory; None if it does not exist."""
        ...

    def write(self, query: RunningQuery, name: str, text: str) -> None:
        """Write a small file into Spark's checkpoint directory, if that is possible here."""
        ...

    def check(self, settings: Settings) -> None:
        """Raise `InvalidRequestError` for settings that can't be used here."""
        ...

    def default_parallelism(self) -> int:
        """Return Spark's default number of partitions: by default, the number of the session's cores."""
        ...

    def executors(self) -> frozenset[str]:
        """Return the addresses of the application's executors; none if they are not known here."""
        ...

    def needs_rows(self, query: RunningQuery) -> bool:
        """Return whether Spark may need the rows of each batch that it commits.

        It needs them for the state of its aggregations and joins, and for its watermark, which follows the rows
        that were read.
        """
        ...

    def last_progress(self, query: RunningQuery) -> str | None:
        """Return the JSON of Spark's last `StreamingQueryProgress`; None if it is not known here. From any thread."""
        ...

    def last_input_rows(self, query: RunningQuery) -> int | None:
        """Return the number of rows that the query's sources had in its last batch; None if it is not known here."""
        ...

    def is_empty(self, rows: DataFrame) -> bool:
        """Return whether a batch without new input has no rows, also from Spark's stateful operators.

        If it has no rows, the state of Spark's operators for the batch was computed.
        """
        ...

    def reports(self) -> Reports | None:
        """Return new `Reports` for an operator; None without `jobs`: reports can't be validated then."""
        ...

    def send(
        self, payload: TaskPayload, *, uid: str
    ) -> "AbstractContextManager[TaskPayload | Broadcast[TaskPayload]]":
        """Make the payload of an operator available to its tasks, for the block.

        Raises `InvalidRequestError` if it is too large.
        """
        ...

    def stop_error(self, query: RunningQuery, error: BaseException) -> Exception | None:
        """Return the error to raise instead of one that was caused by stopping the query.

        None if the query has not been stopped, or the error has another cause.
        """
        ...

    def jobs(self, run_id: str) -> "Jobs | None":
        """Return the jobs of a run, or None if Spark does not report them.

        With jobs the sink computes the output, and is monitored. Without them the output is computed when an operator
        is applied, and kept for the sink.
        """
        ...


def pin_planner_settings(session: SparkSession) -> None:
    """Set what operators need from Spark's planner: stable rows, and all rows of the operators in a sink's plan.

    The subtask of a row can depend on the order of rows. With these checksums Spark notices that a retried part of a
    shuffle has other rows, and then retries the whole stage. Spark 4.3 does so by default, 4.1 only if it is set.

    If one side of a join has no rows, adaptive execution continues without the other side, and lets its tasks run.
    Operators there would be in the middle of a pass whose rows are dropped; but they have to run in every batch.

    The session is the query's own copy, so that other queries don't see the change.
    """
    for key in _SHUFFLE_CHECKSUMS:
        session.conf.set(key, "true")
    excluded = session.conf.get(_EXCLUDED_RULES, None)
    rules = [excluded, _EMPTY_JOIN_RULE] if excluded else [_EMPTY_JOIN_RULE]
    session.conf.set(_EXCLUDED_RULES, ",".join(rules))
