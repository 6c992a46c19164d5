"""An operator during a run of a query, and during a batch whose jobs can be monitored."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from holdfast.errors import CheckpointDeclinedError
from holdfast.spark.engines import Jobs
from holdfast.spark.operators import Operator, Routing, arrow_schema
from holdfast.spark.subtask import (
    Acknowledgement,
    Reports,
    decode_acknowledgements,
    has_duplicate_reports,
    reports_of_final_pass,
)


def compute(frame: DataFrame) -> None:
    """Compute all rows, and keep none."""
    frame.write.format("noop").mode("overwrite").save()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanShape:
    """The parts of an operator's plan that depend only on schemas.

    Attributes:
        routing: The routing of rows to subtasks.
        output_schema: Schema of the rows that the operator yields, in Arrow.
        spark_schema: Schema of these rows in Spark.
    """

    routing: Routing
    output_schema: pa.Schema
    spark_schema: StructType

    @classmethod
    def of(cls, rows: DataFrame, operator: Operator, max_parallelism: int) -> Self:
        """Return the shape for all rows that have the schema of these rows."""
        output = rows
        if operator.schema is not None:
            output = rows.sparkSession.createDataFrame([], operator.schema)
        columns = [StructField(column.name, column.dataType) for column in output.schema]
        return cls(
            routing=Routing.of(rows, operator, max_parallelism),
            output_schema=arrow_schema(output, uid=operator.uid),
            spark_schema=StructType(columns),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningOperator:
    """An operator over all batches of a run.

    Attributes:
        operator: The operator.
        reports: Receives the acknowledgements of subtasks, over all jobs of the sink; None if they
            are rows of the output.
        shapes: The shapes of plans, by the schema of the rows that are routed.
        preparations: Functions that prepare rows, by the schema of the rows that the operator is applied to.
    """

    operator: Operator
    reports: Reports | None
    shapes: dict[str, PlanShape] = field(default_factory=dict)
    preparations: dict[str, Callable[[DataFrame], DataFrame]] = field(default_factory=dict)

    @property
    def received(self) -> list[bytes]:
        """The acknowledgements that have reached the driver; the list itself."""
        return [] if self.reports is None else self.reports.value

    def prepare(self, rows: DataFrame) -> DataFrame:
        """Prepare rows for routing; the function is determined once for each schema."""
        if self.operator.prepare is None:
            return rows
        key = rows.schema.json()
        if key not in self.preparations:
            self.preparations[key] = self.operator.prepare(rows)
        return self.preparations[key](rows)

    def shape(self, rows: DataFrame, max_parallelism: int) -> PlanShape:
        """Return the shape of the plan for rows, which is determined once for each schema."""
        key = rows.schema.json()
        if key not in self.shapes:
            self.shapes[key] = PlanShape.of(rows, self.operator, max_parallelism)
        return self.shapes[key]


@dataclass(slots=True)
class AppliedOperator:
    """An operator that was applied in the batch, whose output is computed when it is read.

    Attributes:
        operator: The operator.
        rows: The rows that the operator is applied to.
        output: The rows that it yields.
        received: All acknowledgements that have reached the driver, in this batch and before.
        checkpoint_id: The checkpoint that the batch will complete.
        ignored: Number of acknowledgements that are ignored.
    """

    operator: Operator
    rows: DataFrame
    output: DataFrame
    received: list[bytes]
    checkpoint_id: int
    ignored: int = field(init=False)

    def __post_init__(self) -> None:
        self.ignored = len(self.received)

    def run(self) -> None:
        """Compute the output; earlier reports of its subtasks are ignored."""
        self.ignored = len(self.received)
        compute(self.output)

    def acknowledgements(self) -> list[Acknowledgement]:
        """Return the reports of the subtasks in this batch."""
        reports = decode_acknowledgements(self.received[self.ignored :])
        return [report for report in reports if report.checkpoint_id == self.checkpoint_id]

    def decline_error(self, problem: str) -> CheckpointDeclinedError:
        """Return the error for a sink whose output may differ from the state."""
        message = (
            f"the sink of operator {self.operator.uid!r} {problem}. It has to read all rows in "
            "one action of the DataFrame and let errors through, or to be used with persist=True"
        )
        return CheckpointDeclinedError(message)

    def resolve_reports(
        self, others: Sequence["AppliedOperator"], jobs: Jobs
    ) -> list[Acknowledgement]:
        """Return the reports of the pass over the rows that the sink has written; if there was no such pass, run it.

        Args:
            others: All other operators that were applied in the batch.
            jobs: The jobs of the run.

        Raises:
            CheckpointDeclinedError: The state and the sink's output could be from different passes.
        """
        parallelism = self.operator.parallelism
        reports = self.acknowledgements()
        if self.operator.forward and has_duplicate_reports(reports):
            raise self.decline_error(
                "has some of its rows computed twice in one stage. With forward=True it must not "
                "coalesce them; if an executor was lost, restart the query"
            )
        if len(reports) < parallelism:
            # The sink read no rows, or only a prefix (show(), limit), so the state may be from another pass; unless
            # later operators have read the prefix, or earlier operators would run again.
            finished = [(other, len(other.acknowledgements())) for other in others]
            finished = [(other, count) for other, count in finished if count]
            uid = self.operator.uid
            is_partly_used = any(jobs.depends_on(other.rows, uid) for other, _ in finished)
            if not is_partly_used:
                self.run()
            if is_partly_used or any(
                len(other.acknowledgements()) != count for other, count in finished
            ):
                raise self.decline_error("reads its rows only in part")
            reports = self.acknowledgements()
        final = reports_of_final_pass(reports, parallelism)
        if final is None:
            raise self.decline_error(
                "runs its rows through the operator more than once, and may have written those of any "
                "pass (several actions, orderBy and repartitionByRange do that; so does the "
                "loss of an executor: restart the query then)"
            )
        return final
