"""An operator over the batches of a run: plans that are prepared once for each schema of rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from holdfast.backends.assignment import AssignedOperator
from holdfast.spark.operators import LATE, Operator, Routing, arrow_schema, side_columns
from holdfast.spark.subtask import Reports


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanShape:
    """The parts of an operator's plan that depend only on schemas.

    Attributes:
        routing: The routing of rows.
        output_schema: The main output in Arrow.
        side_schemas: The side outputs in Arrow, by name.
        spark_schema: All columns of the output in Spark.
    """

    routing: Routing
    output_schema: pa.Schema
    side_schemas: Mapping[str, pa.Schema]
    spark_schema: StructType


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningOperator:
    """An operator over all batches of a run. Plans are prepared once for each schema of rows, by its JSON.

    Attributes:
        reports: Receives the acknowledgements of subtasks, over all jobs of the sink; None if they
            are rows of the output.
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
        """Prepare rows for routing."""
        if self.operator.prepare is None:
            return rows
        key = rows.schema.json()
        if key not in self.preparations:
            self.preparations[key] = self.operator.prepare(rows)
        return self.preparations[key](rows)

    def shape(
        self, rows: DataFrame, given_rows: DataFrame, assigned: AssignedOperator
    ) -> PlanShape:
        """Return the shape of the plan for prepared rows.

        Args:
            rows: The rows.
            given_rows: The rows without those of an initial state: late rows have their schema.
            assigned: The operator's state.
        """
        key = rows.schema.json()
        if key not in self.shapes:
            operator, output = self.operator, rows
            session = rows.sparkSession
            if operator.schema is not None:
                output = session.createDataFrame([], operator.schema)
            side = {
                name: session.createDataFrame([], schema)
                for name, schema in operator.side_outputs.items()
            }
            if operator.late_rows:
                side[LATE] = given_rows
            columns = [StructField(column.name, column.dataType) for column in output.schema]
            columns += side_columns({name: frame.schema for name, frame in side.items()})
            self.shapes[key] = PlanShape(
                routing=Routing.of(rows, operator, assigned.parallelism, assigned.max_parallelism),
                output_schema=arrow_schema(output, uid=operator.uid),
                side_schemas={
                    name: arrow_schema(frame, uid=operator.uid) for name, frame in side.items()
                },
                spark_schema=StructType(columns),
            )
        return self.shapes[key]
