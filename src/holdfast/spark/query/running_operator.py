"""An operator of a query, over all batches of a run."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from holdfast.backends.assignment import AssignedOperator
from holdfast.spark.operators import Operator, Routing, arrow_schema
from holdfast.spark.subtask import Reports


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanShape:
    """The parts of an operator's plan that depend on schemas alone.

    Attributes:
        routing: How rows get to subtasks.
        output_schema: Schema of the rows that the operator yields, in Arrow.
        spark_schema: Schema of these rows in Spark.
    """

    routing: Routing
    output_schema: pa.Schema
    spark_schema: StructType

    @classmethod
    def of(cls, rows: DataFrame, operator: Operator, assigned: AssignedOperator) -> Self:
        """The shape for all rows that have the schema of these."""
        output = rows
        if operator.schema is not None:
            output = rows.sparkSession.createDataFrame([], operator.schema)
        columns = [StructField(column.name, column.dataType) for column in output.schema]
        return cls(
            routing=Routing.of(rows, operator, assigned.parallelism, assigned.max_parallelism),
            output_schema=arrow_schema(output, uid=operator.uid),
            spark_schema=StructType(columns),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningOperator:
    """What an operator has over all batches of a run.

    Attributes:
        operator: The operator as the user describes it.
        reports: Brings the acknowledgements of subtasks, over all jobs of the sink; None if they
            are rows of the output.
        shapes: The shapes of plans, by the schema of the rows that are dealt.
        preparations: Functions that prepare rows, by the schema of the rows that the operator is applied to.
    """

    operator: Operator
    reports: Reports | None
    shapes: dict[str, PlanShape] = field(default_factory=dict)
    preparations: dict[str, Callable[[DataFrame], DataFrame]] = field(default_factory=dict)

    @property
    def arrived(self) -> list[bytes]:
        """The acknowledgements that have come to the driver; the list itself."""
        return [] if self.reports is None else self.reports.value

    def prepared(self, rows: DataFrame) -> DataFrame:
        """The rows as they are dealt; how that is done is worked out once for each schema."""
        if self.operator.prepare is None:
            return rows
        key = rows.schema.json()
        if key not in self.preparations:
            self.preparations[key] = self.operator.prepare(rows)
        return self.preparations[key](rows)

    def shape(self, rows: DataFrame, assigned: AssignedOperator) -> PlanShape:
        """The shape of the plan for such rows; worked out once for each schema."""
        key = rows.schema.json()
        if key not in self.shapes:
            self.shapes[key] = PlanShape.of(rows, self.operator, assigned)
        return self.shapes[key]
