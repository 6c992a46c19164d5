"""Sinks for Iceberg tables, each with a row of the batch exactly once.

An append is staged under an id that names the query and the batch, and then published, as in Iceberg's write-audit-publish
(WAP). Iceberg publishes an id once, also if two drivers publish it at the same time, and doesn't mind other writers:

    spark.wap.id = holdfast:<application id>:<batch id>:<name>

A MERGE has this id in the property `holdfast-batch` of its snapshot. By these ids the batches of a query are found after a
rollback, and repeated batches are recognized, as long as the snapshots haven't expired.
"""

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import InvalidRequestError
from holdfast.spark.operators import Sink
from holdfast.spark.sinks.batches import Batch, Commit, OnRollback, TableSink, Version
from holdfast.spark.sinks.merging import MergeRule, session_settings

__all__ = ["append_once", "merge"]

_WAP_ENABLED = "write.wap.enabled"
_ATTEMPT = "holdfast-attempt"
_BATCH = "holdfast-batch"
_PUBLISHED = "Duplicate request to cherry pick wap id"


def append_once(
    table: str,
    *,
    name: str = "",
    options: Mapping[str, str] | None = None,
    on_rollback: OnRollback = "restore",
) -> Sink:
    """Append the rows of each batch to an Iceberg table exactly once.

    A batch that Spark repeats after a crash is skipped; so is that of a driver that comes too late. This holds as long as
    the snapshot of the batch hasn't expired. The table is created if it doesn't exist, and gets the property
    `write.wap.enabled`, which changes nothing for other writers.

    The first batch after a rollback or a restore of the query removes the rows of batches that come again: it rolls
    the table back to the snapshot before them, if all later snapshots are of the query. Else it raises an error with
    the snapshots of others. A fork has its own query id, so it needs its own table.

    Args:
        table: A table, with its catalog unless that is the current one.
        name: Distinguishes sinks of a query that write to the same table.
        options: Further options of Iceberg's writer, such as `fanout-enabled`.
        on_rollback: `keep` if rows of revoked batches may stay in the table, or you have deleted them.

    Raises:
        InvalidRequestError: In the batch: Iceberg or the catalog is missing, the table can't be rolled back, or it was
            written before in this batch under the same name.
    """
    target = _IcebergTable(table)

    def write(rows: DataFrame, batch: Batch) -> None:
        session = rows.sparkSession
        with _explained_errors(table):
            if not target.exists(session):
                target.create(rows)
            target.enable_staging(session)
        attempt = uuid.uuid4().hex
        with session_settings(session, {"spark.wap.id": _mark(batch, name)}):
            writer = rows.writeTo(table).options(**(options or {}))
            writer.option(f"snapshot-property.{_ATTEMPT}", attempt).append()
        target.publish(session, attempt)

    return TableSink(target, write, name=name, on_rollback=on_rollback)


def merge(
    table: str,
    *,
    on: Sequence[str],
    deletes: str | None = None,
    latest: str | None = None,
    name: str = "",
    on_rollback: OnRollback = "restore",
) -> Sink:
    """Merge the rows of each batch into an Iceberg table by a key: they replace, insert or delete the rows of their keys.

    The rows of a batch are kept on the executors for that time, because a MERGE reads them more than once. A batch that Spark
    repeats after a crash is skipped, as long as its snapshot hasn't expired; later a repetition has the same result. The
    table is created if it doesn't exist. For rollbacks see `append_once`.

    Args:
        table: A table, with its catalog unless that is the current one.
        on: The columns of the key. None of them may be null.
        deletes: An SQL condition, or the name of a boolean column: such a row deletes the row of its key. Columns
            that only the condition uses need not be in the table.
        latest: The column whose greatest value wins among rows of one key. Without it several rows of a key in one batch are
            an error.
        name: Distinguishes sinks of a query that write to the same table.
        on_rollback: `keep` if rows of revoked batches may stay in the table, or you have restored them.

    Raises:
        InvalidRequestError: A column is missing; in the batch a key is null or has several rows; or an error of
            `append_once`.
    """
    rule = MergeRule(on, deletes, latest)
    target = _IcebergTable(table)

    def write(rows: DataFrame, batch: Batch) -> None:
        session = rows.sparkSession
        mark = _mark(batch, name)
        with _explained_errors(table):
            if not target.exists(session):
                target.create(rule.rows_of_new_table(rows))
            columns = session.table(table).columns
        rule.check_columns(rows, columns, target.description)
        if target.has(session, mark):
            return
        settings = {f"spark.sql.iceberg.snapshot-property.{_BATCH}": mark}
        with session_settings(session, settings):
            rule.run(rows, table, columns)

    return TableSink(target, write, name=name, on_rollback=on_rollback)


@dataclass(frozen=True, slots=True)
class _IcebergTable:
    """A `Table` of Iceberg."""

    table: str

    @property
    def description(self) -> str:
        return f"Iceberg table {self.table}"

    @property
    def harmless(self) -> Collection[str]:
        return ("replace",)

    def exists(self, session: SparkSession) -> bool:
        return bool(session.catalog.tableExists(self.table))

    def create(self, rows: DataFrame) -> None:
        """Create the table with the columns of rows, and without rows."""
        empty = rows.sparkSession.createDataFrame([], rows.schema)
        empty.writeTo(self.table).using("iceberg").create()

    def enable_staging(self, session: SparkSession) -> None:
        """Let writers stage their snapshots if they have an id."""
        properties = session.sql(f"SHOW TBLPROPERTIES {self.table}").collect()
        if not any(row.key == _WAP_ENABLED and row.value == "true" for row in properties):
            session.sql(f"ALTER TABLE {self.table} SET TBLPROPERTIES ('{_WAP_ENABLED}' = 'true')")

    def publish(self, session: SparkSession, attempt: str) -> None:
        """Publish the snapshot of an attempt, unless that of another attempt at the batch is published."""
        staged = session.table(f"{self.table}.snapshots")
        staged = staged.where(f"summary['{_ATTEMPT}'] = '{attempt}'").select("snapshot_id")
        [(snapshot,)] = staged.collect()
        try:
            session.sql(self._call(session, "cherrypick_snapshot", snapshot)).collect()
        except Exception as error:
            if _PUBLISHED not in str(error):
                raise

    def has(self, session: SparkSession, mark: str) -> bool:
        """Return whether a snapshot with this mark is in the table."""
        self._refresh(session)
        snapshots = session.table(f"{self.table}.snapshots")
        if snapshots.where(f"summary['{_BATCH}'] = '{mark}'").isEmpty():
            return False
        return any(row.mark == mark for row in self._ancestors(session))

    def history(self, session: SparkSession) -> Iterable[Commit]:
        with _explained_errors(self.table):
            if not self.exists(session):
                return
        self._refresh(session)
        for row in self._ancestors(session):
            yield Commit(row.snapshot_id, row.operation, _parse(row.mark))

    def restore_command(self, session: SparkSession, version: Version) -> str:
        return self._call(session, "rollback_to_snapshot", version)

    def _refresh(self, session: SparkSession) -> None:
        """Let the session read the table again: its catalog keeps tables for a while."""
        session.sql(f"REFRESH TABLE {self.table}")

    def _ancestors(self, session: SparkSession) -> Iterator[Any]:
        """Yield the current snapshot and its ancestors, the newest first."""
        marks = ", ".join(f"summary['{key}']" for key in ("wap.id", "published-wap-id", _BATCH))
        snapshots = session.table(f"{self.table}.snapshots").selectExpr(
            "snapshot_id", "parent_id", "operation", f"coalesce({marks}) AS mark"
        )
        by_id = {row.snapshot_id: row for row in snapshots.collect()}
        main = session.table(f"{self.table}.refs").where("name = 'main'").select("snapshot_id")
        for (newest,) in main.collect():
            snapshot = by_id.get(newest)
            while snapshot is not None:
                yield snapshot
                snapshot = by_id.get(snapshot.parent_id)

    def _call(self, session: SparkSession, procedure: str, snapshot: int) -> str:
        """Return the statement that calls a procedure of the catalog with the table and a snapshot."""
        catalog, _, table = self.table.partition(".")
        if session.conf.get(f"spark.sql.catalog.{catalog}", None) is None:
            catalog, table = session.catalog.currentCatalog(), self.table
        return f"CALL {catalog}.system.{procedure}('{table}', {snapshot})"


def _mark(batch: Batch, name: str) -> str:
    return f"holdfast:{batch.application_id}:{batch.batch_id}:{name}"


def _parse(mark: str | None) -> Batch | None:
    """Return the batch of a snapshot; None for a snapshot of another program."""
    match (mark or "").split(":", 3):
        case ["holdfast", application_id, batch_id, _] if batch_id.isdecimal():
            return Batch(application_id, int(batch_id))
        case _:
            return None


@contextmanager
def _explained_errors(table: str) -> Iterator[None]:
    """Explain the errors of a Spark without Iceberg or its catalog. Raises `InvalidRequestError`."""
    try:
        yield
    except Exception as error:  # Spark's own classes, and py4j's
        causes = ("CATALOG_NOT_FOUND", "REQUIRES_SINGLE_PART_NAMESPACE", "DATA_SOURCE_NOT_FOUND")
        if not any(cause in str(error) for cause in causes):
            raise
        version = ".".join(pyspark.__version__.split(".")[:2])
        raise InvalidRequestError(
            f"Spark has no Iceberg catalog for {table}: start it with the package of PySpark {version}, such as "
            f"spark.jars.packages=org.apache.iceberg:iceberg-spark-runtime-{version}_2.13:1.12.0, with "
            "spark.sql.extensions=org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions, and with "
            "the catalog, such as spark.sql.catalog.lake=org.apache.iceberg.spark.SparkCatalog"
        ) from error
