"""Main and side outputs of an operator, as rows of one DataFrame.

    a, b, …    __holdfast_side_late    __holdfast_side_…
    1, x, …    null                    null                 a row of the main output
    null       {a, b, …}               null                 a row of the side output "late"

So one pass of the operator yields all of them, and Spark caches them together. Each output is a projection.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from holdfast.spark.operators.output_rows import OutputRows, Row
from holdfast.spark.sessions import column_named, quote_name

LATE = "late"
"""The name of the side output with the late rows."""

_PREFIX = "__holdfast_side_"


class SideRows(OutputRows):
    """The rows of a side output that were emitted and not yielded yet."""

    def emit(self, row: Row, /) -> None:
        """Emit a row, or rows of Arrow. Raises `InvalidRequestError` if it does not have the output's columns."""
        self.add((row,))


@dataclass(frozen=True, slots=True)
class OutputSchema:
    """The columns of an operator's output.

    Attributes:
        main: The columns of the main output.
        side: The columns of each side output, by its name.
    """

    main: pa.Schema
    side: Mapping[str, pa.Schema]

    @property
    def fields(self) -> list[pa.Field]:
        """All columns: those of the main output, then a struct for each side output."""
        structs = [
            pa.field(column_of(name), pa.struct(list(schema))) for name, schema in self.side.items()
        ]
        return [*self.main, *structs]

    def of_main(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the main output with all columns."""
        if not self.side:
            return rows
        return self._with_nulls(dict(zip(rows.schema.names, rows.columns, strict=True)))

    def of_side(self, name: str, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of a side output with all columns."""
        return self._with_nulls({column_of(name): rows.to_struct_array()})

    def _with_nulls(self, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
        count = len(next(iter(columns.values())))
        fields = self.fields
        arrays = [
            columns[field.name] if field.name in columns else pa.nulls(count, field.type)
            for field in fields
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def column_of(name: str) -> str:
    """Return the column of a side output."""
    return _PREFIX + name


def side_columns(schemas: Mapping[str, StructType]) -> list[StructField]:
    """Return Spark's columns of side outputs."""
    return [
        StructField(
            column_of(name),
            StructType([StructField(field.name, field.dataType) for field in schema]),
        )
        for name, schema in schemas.items()
    ]


def main_output(output: DataFrame) -> DataFrame:
    """Return the rows of the main output."""
    structs = [name for name in output.columns if name.startswith(_PREFIX)]
    for name in structs:
        output = output.where(column_named(name).isNull())
    return output.drop(*structs) if structs else output


def side_output(output: DataFrame, name: str) -> DataFrame:
    """Return the rows of a side output."""
    column = column_of(name)
    rows = output.where(column_named(column).isNotNull())
    return rows.select(F.col(f"{quote_name(column)}.*"))
