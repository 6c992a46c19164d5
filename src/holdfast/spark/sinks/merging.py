"""Rows of a batch that are merged into a table by a key: which of them win, and which delete their key."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from holdfast.errors import InvalidRequestError
from holdfast.spark.sessions import column_named

DELETED = "__holdfast_deleted"
"""The column that is true in rows that delete their key."""


@dataclass(frozen=True, slots=True)
class MergeRule:
    """A rule that merges rows into a table.

    Attributes:
        on: The columns of the key.
        deletes: An SQL condition over the rows, for rows that delete their key; None without such rows.
        latest: The column whose greatest value wins if a batch has several rows of a key; None if it must not have them.
    """

    on: Sequence[str]
    deletes: str | None = None
    latest: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.on, str) or not self.on:
            raise InvalidRequestError(f"on is {self.on!r}; it must be a list of columns: on=['id']")

    def check_columns(self, rows: DataFrame, table_columns: Sequence[str], table: str) -> None:
        """Refuse rows that don't fit the table. Raises `InvalidRequestError`."""
        for column in (*self.on, *([self.latest] if self.latest else [])):
            if column not in rows.columns:
                message = f"column {column!r} is not in the rows, which have {rows.columns}"
                raise InvalidRequestError(message)
        if missing := [column for column in self.on if column not in table_columns]:
            message = f"key columns {missing} are not in {table}, which has {list(table_columns)}"
            raise InvalidRequestError(message)
        unknown = [
            column
            for column in rows.columns
            if column not in table_columns and not self._is_for_deletes(rows, column)
        ]
        if unknown:
            message = (
                f"columns {unknown} are not in {table}, which has {list(table_columns)}: drop them from the "
                "rows, or add them to the table"
            )
            raise InvalidRequestError(message)

    @property
    def keys(self) -> list[Column]:
        """The columns of the key."""
        return [column_named(column) for column in self.on]

    def mark_rows(self, rows: DataFrame) -> DataFrame:
        """Return the rows that win, with a column of deletions."""
        deleted = F.expr(self.deletes) if self.deletes else F.lit(False)
        rows = rows.withColumn(DELETED, F.coalesce(deleted, F.lit(False)))
        if self.latest is not None:
            window = Window.partitionBy(*self.keys).orderBy(
                column_named(self.latest).desc_nulls_last()
            )
            rows = rows.withColumn("__holdfast_rank", F.rank().over(window))
            rows = rows.where("__holdfast_rank = 1").drop("__holdfast_rank")
        return rows

    def _is_for_deletes(self, rows: DataFrame, column: str) -> bool:
        """Return whether the condition of deletions uses a column."""
        if self.deletes is None:
            return False
        # Spark would find a column that is only dropped.
        others = rows.sparkSession.createDataFrame([], rows.drop(column_named(column)).schema)
        try:
            others.where(self.deletes)
        except AnalysisException:
            return True
        return False
