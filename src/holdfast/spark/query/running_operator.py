"""An operator over the batches of a run: plans that are prepared once for each schema of rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, StructField, StructType

from holdfast.backends.assignment import AssignedOperator
from holdfast.spark.operators import (
    LATE,
    SUBTASK,
    Combination,
    CombinedRouting,
    Operator,
    Routing,
    TaskHomes,
    arrow_schema,
    side_columns,
)
from holdfast.spark.prepared import PreparedMap
from holdfast.spark.sessions import column_named
from holdfast.spark.subtask import COLUMN, Reports


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanShape:
    """The parts of an operator's plan that depend only on schemas.

    Attributes:
        prepare: Prepares the rows of a batch for routing.
        routing: The routing of prepared rows.
        combined: The routing of rows that Spark combines after it has moved them, instead of preparing them before; None
            if that isn't possible.
        output_schema: The main output in Arrow.
        side_schemas: The side outputs in Arrow, by name.
        map: Runs the subtasks over routed rows.
    """

    prepare: Callable[[DataFrame], DataFrame]
    routing: Routing
    combined: CombinedRouting | None
    output_schema: pa.Schema
    side_schemas: Mapping[str, pa.Schema]
    map: PreparedMap

    def repartition(
        self,
        rows: DataFrame,
        late_watermark: int,
        tasks: int,
        homes: TaskHomes | None,
        *,
        is_small: bool,
    ) -> DataFrame:
        """Move the rows of a batch, which may be a small one, to that number of tasks, by their subtasks."""
        if self.combined is not None and is_small:
            return self.combined.repartition(rows, tasks, homes)
        return self.routing.repartition(self.prepare(rows), late_watermark, tasks, homes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningOperator:
    """An operator over all batches of a run. Plans are prepared once for each schema of rows.

    Attributes:
        reports: Receives the acknowledgements of subtasks, over all jobs of the sink; None if they
            are rows of the output.
    """

    operator: Operator
    reports: Reports | None
    shapes: dict[tuple[str, bool], PlanShape] = field(default_factory=dict)

    @property
    def received(self) -> list[bytes]:
        """The acknowledgements that have reached the driver; the list itself."""
        return [] if self.reports is None else self.reports.value

    def shape(self, rows: DataFrame, assigned: AssignedOperator, *, is_new: bool) -> PlanShape:
        """Return the shape of the plan for rows.

        Args:
            rows: The rows of a batch.
            assigned: The operator's state.
            is_new: Whether it is the operator's first batch.
        """
        key = rows.schema.json(), is_new and self.operator.begin is not None
        if key not in self.shapes:
            self.shapes[key] = self._shape(rows, assigned, begins=key[1])
        return self.shapes[key]

    def _shape(self, rows: DataFrame, assigned: AssignedOperator, *, begins: bool) -> PlanShape:
        operator, session = self.operator, rows.sparkSession
        prepare = operator.prepare(rows) if operator.prepare is not None else _keep_rows
        prepared = with_initial_state = prepare(rows)
        begin = operator.begin
        if begins and begin is not None:
            with_initial_state = begin(prepared)
            prepare = _compose(prepare, begin)
        output = with_initial_state
        if operator.schema is not None:
            output = session.createDataFrame([], operator.schema)
        side = {
            name: session.createDataFrame([], schema)
            for name, schema in operator.side_outputs.items()
        }
        if operator.late_rows:
            side[LATE] = prepared  # late rows have no columns of an initial state
        columns = [StructField(column.name, column.dataType) for column in output.schema]
        columns += side_columns({name: frame.schema for name, frame in side.items()})
        if self.reports is None:
            columns.append(StructField(COLUMN, BinaryType()))
        routing = Routing.of(
            with_initial_state, operator, assigned.parallelism, assigned.max_parallelism
        )
        combined = None
        if isinstance(prepare, Combination):
            combined = CombinedRouting.of(prepare, routing, rows)
        return PlanShape(
            prepare=prepare,
            routing=routing,
            combined=combined,
            output_schema=arrow_schema(output, uid=operator.uid),
            side_schemas={
                name: arrow_schema(frame, uid=operator.uid) for name, frame in side.items()
            },
            map=PreparedMap(
                [column_named(name) for name in (*routing.input_schema.names, SUBTASK)],
                StructType(columns),
            ),
        )


def _keep_rows(rows: DataFrame) -> DataFrame:
    return rows


def _compose(
    first: Callable[[DataFrame], DataFrame], second: Callable[[DataFrame], DataFrame]
) -> Callable[[DataFrame], DataFrame]:
    return lambda rows: second(first(rows))
