"""The differences between a classic Spark session and one of Spark Connect."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from holdfast.spark.settings import Settings
from holdfast.spark.subtask import Reports, Shipment

if TYPE_CHECKING:  # a client of Spark Connect may have no more than pyspark-client
    from pyspark.core.broadcast import Broadcast

_SHUFFLE_CHECKSUMS = (
    "spark.sql.shuffle.orderIndependentChecksum.enabled",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch",
)
_EXCLUDED_RULES = "spark.sql.adaptive.optimizer.excludedRules"
_LEAVES_OUT_JOINED_ROWS = "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"


@dataclass(frozen=True, slots=True)
class RunningQuery:
    """The streaming query in whose `foreachBatch` this thread is.

    Attributes:
        query_id: Stays the same for the life of Spark's checkpointLocation.
        run_id: New at each start of the query.
        checkpoint_location: Spark's own checkpoint directory for the query.
        name: The name that the query was given; empty if it has none.
        execution: The query in Spark's JVM; None with Spark Connect.
    """

    query_id: str
    run_id: str
    checkpoint_location: str
    name: str = ""
    execution: Any = field(default=None, repr=False, compare=False)


class Jobs(Protocol):
    """The jobs that a run of a query starts, told by Spark's listeners."""

    def ids(self) -> frozenset[int]:
        """Ids of all jobs so far, as far as Spark remembers them."""
        ...

    def are_all(self) -> bool:
        """Whether all jobs that this thread starts are still among them: the sink may have left the group."""
        ...

    def come_from(self, rows: DataFrame, uid: str) -> bool:
        """Whether the rows are computed from the output of that operator."""
        ...

    def partitions(self, rows: DataFrame) -> int | None:
        """In how many partitions rows are; None if that isn't known before they are computed."""
        ...

    def failed(self, known: frozenset[int]) -> list[bool]:
        """Whether each job that is not `known` has failed, in the order in which they were begun.

        Waits until all of them are over: Spark leaves a job running that it needs no more.

        Raises `CheckpointDeclinedError` if the listeners are too far behind to tell.
        """
        ...


class Engine(Protocol):
    """A query's way to Spark, in the process that runs its batches.

    Attributes:
        session: The session of the batch.
    """

    @property
    def session(self) -> SparkSession: ...

    def running_query(self) -> RunningQuery:
        """The query. Raises `InvalidRequestError` if it can't be told, as outside of `foreachBatch`."""
        ...

    def offsets(self, query: RunningQuery, batch_id: int) -> str | None:
        """Spark's offset log entry of a batch, its text as in its file; None if there is none."""
        ...

    def read(self, query: RunningQuery, name: str) -> str | None:
        """Read a small file of Spark's checkpoint directory; None if there is none."""
        ...

    def leave(self, query: RunningQuery, name: str, text: str) -> None:
        """Write a small file of that name into Spark's checkpoint directory."""
        ...

    def check(self, settings: Settings) -> None:
        """Raises `InvalidRequestError` for settings that can't be used here."""
        ...

    def default_parallelism(self) -> int:
        """Return Spark's default number of partitions: by default, the number of the session's cores."""
        ...

    def needs_rows(self, query: RunningQuery) -> bool:
        """Whether Spark itself may need the rows of each batch that it commits.

        It does for the state of its own aggregations and joins, and for its watermark, which it
        moves on by the rows that were read.
        """
        ...

    def is_empty(self, rows: DataFrame) -> bool:
        """Whether a batch for which sources had nothing new has no rows, from Spark's own operators either.

        If it has none, what Spark itself keeps of the batch was computed.
        """
        ...

    def reports(self) -> Reports | None:
        """New `Reports` for an operator; None where there are no `jobs` to tell whose reports they are."""
        ...

    def shipped(
        self, shipment: Shipment, *, uid: str
    ) -> "AbstractContextManager[Shipment | Broadcast[Shipment]]":
        """Bring what tasks of an operator need to them, for the block.

        Raises `InvalidRequestError` if it is too large.
        """
        ...

    def stopped(self, query: RunningQuery, error: BaseException) -> Exception | None:
        """The error to raise in place of one that comes of the query having been stopped.

        None if the query has not been stopped, or the error has another reason.
        """
        ...

    def jobs(self, run_id: str) -> Jobs | None:
        """The jobs of a run, or None if nobody tells of them.

        With them the sink computes the output, and is watched as it does. Without them the output
        is computed when an operator is applied, and kept for the sink.
        """
        ...


def guard_against_other_plans(session: SparkSession) -> None:
    """Let Spark repeat rows as they were, and read all rows of operators that a sink's plan reads.

    Which subtask a row goes to depends on the order of rows: Spark is to notice when a part of a
    shuffle that it repeats comes out differently; it then repeats the whole stage. Spark 4.3 does so
    by default, 4.1 only when told.

    Where a join turns out to have no rows on one side, adaptive execution goes on without the
    other, and leaves its tasks running. Operators would be in the midst of a pass whose rows
    nobody takes; but they have to run in every batch.

    The session is the query's own copy: no other query sees the change.
    """
    for key in _SHUFFLE_CHECKSUMS:
        session.conf.set(key, "true")
    excluded = session.conf.get(_EXCLUDED_RULES, None)
    rules = [excluded, _LEAVES_OUT_JOINED_ROWS] if excluded else [_LEAVES_OUT_JOINED_ROWS]
    session.conf.set(_EXCLUDED_RULES, ",".join(rules))
