"""An operator that was applied in a batch whose jobs can be watched: what its subtasks have reported."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from holdfast.errors import CheckpointDeclinedError
from holdfast.spark.engines import Jobs
from holdfast.spark.operators import Operator
from holdfast.spark.query.frames import compute
from holdfast.spark.subtask import (
    Acknowledgement,
    decode_acknowledgements,
    is_doubled,
    of_the_pass,
)


@dataclass(slots=True)
class AppliedOperator:
    """An operator that was applied in the batch, and whose output is computed when it is read.

    Attributes:
        operator: The operator.
        parallelism: Number of its subtasks.
        rows: The rows that the operator is applied to.
        output: The rows that it yields.
        arrived: All acknowledgements that have come to the driver, of the batch and before it.
        checkpoint_id: The checkpoint that the batch is to complete.
        before: How many of the acknowledgements don't count.
    """

    operator: Operator
    parallelism: int
    rows: DataFrame
    output: DataFrame
    arrived: list[bytes]
    checkpoint_id: int
    before: int = field(init=False)

    def __post_init__(self) -> None:
        self.before = len(self.arrived)

    @property
    def finished(self) -> int:
        """How many times subtasks came to their end in this batch."""
        return len(self.acknowledgements())

    def run(self) -> None:
        """Compute the output; what its subtasks reported before doesn't count any more."""
        self.before = len(self.arrived)
        compute(self.output)

    def acknowledgements(self) -> list[Acknowledgement]:
        """The reports of the subtasks in this batch."""
        reports = decode_acknowledgements(self.arrived[self.before :])
        return [report for report in reports if report.checkpoint_id == self.checkpoint_id]

    def declined(self, what: str) -> CheckpointDeclinedError:
        """An error that says why the sink can't be trusted to hold what the state says."""
        message = (
            f"the sink of operator {self.operator.uid!r} {what}. It has to read all rows in "
            "one action of the DataFrame and let errors through, or to be used with persist=True"
        )
        return CheckpointDeclinedError(message)

    def settled(self, others: Sequence["AppliedOperator"], jobs: Jobs) -> list[Acknowledgement]:
        """The reports of the pass over the rows that the sink holds; if there was none, it is made now.

        Args:
            others: All other operators that were applied in the batch.
            jobs: The jobs of the run.

        Raises:
            CheckpointDeclinedError: State and what the sink holds could come from different passes.
        """
        reports = self.acknowledgements()
        if self.operator.forward and is_doubled(reports):
            raise self.declined(
                "has some of its rows computed twice in one stage. With forward=True it must not "
                "coalesce them; if an executor was lost, restart the query"
            )
        if len(reports) < self.parallelism:
            # The sink read nothing, or only a glimpse, so the state may come from another pass; but not if
            # operators behind this one have seen the glimpse, or operators before it run once more.
            finished = [other for other in others if other.finished]
            ran = [other.finished for other in finished]
            uid = self.operator.uid
            is_partly_used = any(jobs.come_from(other.rows, uid) for other in finished)
            if not is_partly_used:
                self.run()
            if is_partly_used or ran != [other.finished for other in finished]:
                raise self.declined("reads its rows only in part")
            reports = self.acknowledgements()
        settled = of_the_pass(reports, self.parallelism)
        if settled is None:
            raise self.declined(
                "runs its rows through the operator more than once, and may hold those of any "
                "pass (several actions, orderBy and repartitionByRange do that; so does the "
                "loss of an executor: restart the query then)"
            )
        return settled
