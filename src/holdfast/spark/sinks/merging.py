"""MERGE of the rows of a batch into a table by a key, in one action over the rows, and with the same result when repeated."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from holdfast.errors import InvalidRequestError
from holdfast.spark.sessions import column_named, quote_name

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

    def rows_of_new_table(self, rows: DataFrame) -> DataFrame:
        """Return the rows with the columns of a table that is created for them."""
        return rows if self.deletes is None else rows.drop(self.deletes)

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

    def source(self, rows: DataFrame) -> DataFrame:
        """Compute the rows once and keep them: at most one for each key, with a column of deletions.

        Iceberg can't resolve a MERGE whose source runs Python functions, so only the rows are kept, without their plan.

        Raises:
            InvalidRequestError: A key is null, or there are several rows of a key.
        """
        kept = self.mark_rows(rows).localCheckpoint()
        self._check_keys(kept)
        return kept

    def statement(self, target: str, source: str, columns: Sequence[str]) -> str:
        """Return the MERGE of a view into a table. `columns` are those of the rows that the table has."""
        key = " AND ".join(f"t.{quote_name(name)} = s.{quote_name(name)}" for name in self.on)
        names = [quote_name(name) for name in columns]
        updates = ", ".join(f"{name} = s.{name}" for name in names)
        values = ", ".join(f"s.{name}" for name in names)
        deletion = f"WHEN MATCHED AND s.{DELETED} THEN DELETE " if self.deletes else ""
        insertion = f"WHEN NOT MATCHED AND NOT s.{DELETED}" if self.deletes else "WHEN NOT MATCHED"
        return (  # names are quoted, and the table is named by the user's code
            f"MERGE INTO {target} AS t USING {source} AS s ON {key} {deletion}"  # noqa: S608
            f"WHEN MATCHED THEN UPDATE SET {updates} "
            f"{insertion} THEN INSERT ({', '.join(names)}) VALUES ({values})"
        )

    def run(self, rows: DataFrame, target: str, columns: Sequence[str]) -> None:
        """Merge rows into a table with these columns."""
        session = rows.sparkSession
        common = [column for column in rows.columns if column in columns]
        view = f"holdfast_{uuid.uuid4().hex}"
        self.source(rows).createOrReplaceTempView(view)
        try:
            session.sql(self.statement(target, view, common)).collect()
        finally:
            session.catalog.dropTempView(view)

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

    def _check_keys(self, rows: DataFrame) -> None:
        """Read all rows, and refuse keys that a MERGE can't treat the same way in each repetition."""
        is_null = F.lit(False)
        for key in self.keys:
            is_null |= key.isNull()
        count, unique, null = F.count(F.lit(1)), "__holdfast_count", "__holdfast_null"
        groups = rows.groupBy(*self.keys).agg(count.alias(unique), F.max(is_null).alias(null))
        count_and_null = groups.agg(F.max(unique), F.max(null)).collect()[0]
        if count_and_null[1]:
            message = f"a row has null in its key {list(self.on)}, which a MERGE never matches"
            raise InvalidRequestError(message)
        if (count_and_null[0] or 0) > 1:
            way_out = (
                f"the rows have the same {self.latest!r}: choose a column that orders them"
                if self.latest
                else "pass latest= with the column that orders them, and the greatest wins"
            )
            message = f"a batch has several rows of one key {list(self.on)}; {way_out}"
            raise InvalidRequestError(message)


@contextmanager
def session_settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Give the session of a query settings for the block."""
    before = {key: session.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key, earlier in before.items():
            if earlier is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, earlier)
