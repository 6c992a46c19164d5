"""Sinks for Delta tables, each with a row of the batch exactly once.

They use Delta's own marks: a commit with an application id and a version, which are the query's id for sinks and the batch id.
Delta skips a commit whose version it has seen, and of two concurrent commits of an application one fails. Each commit also
has the batch in its `userMetadata`, where it is found after a rollback:

    {"holdfast": {"application_id": "6d5f…", "batch_id": 17}}
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from holdfast.common import json_decoder
from holdfast.errors import InvalidRequestError
from holdfast.spark.operators import Sink
from holdfast.spark.sinks.batches import (
    Batch,
    Commit,
    OnRollback,
    TableSink,
    Version,
)
from holdfast.spark.sinks.merging import MergeRule, session_settings

__all__ = ["append_once", "merge"]

_RESERVED = {"txnappid", "txnversion", "usermetadata"}

_MISSING = ("PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST")

_TXN_APP_ID = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


class _UserMetadata(msgspec.Struct, frozen=True):
    holdfast: Batch


_DECODER = json_decoder(_UserMetadata)


def append_once(
    table: str,
    *,
    name: str = "",
    options: Mapping[str, str] | None = None,
    on_rollback: OnRollback = "restore",
) -> Sink:
    """Append the rows of each batch to a Delta table exactly once.

    A batch that Spark repeats after a crash is skipped; so is that of a driver that comes too late. The table is created
    if it doesn't exist.

    The first batch after a rollback or a restore of the query removes the rows of batches that come again:
    `RESTORE TABLE` to the version before them, if all later commits are of the query. Else it raises an error with
    the commits of others. A fork has its own query id, so it needs its own table.

    Args:
        table: A table in the catalog, or a path, which contains a `/`.
        name: Distinguishes sinks of a query that write to the same table.
        options: Further options of Delta's writer, such as `mergeSchema`.
        on_rollback: `keep` if rows of revoked batches may stay in the table, or you have deleted them.

    Raises:
        InvalidRequestError: In the batch: Delta is not installed, the table can't be restored, or it was written before
            in this batch under the same name.
    """
    options = dict(options or {})
    if reserved := [key for key in options if key.lower() in _RESERVED]:
        raise InvalidRequestError(f"options {reserved} are set by the sink; leave them out")
    target = _DeltaTable(table)

    def write(rows: DataFrame, batch: Batch) -> None:
        writer = (
            rows.write.format("delta")
            .mode("append")
            .options(**options)
            .option("txnAppId", _txn_app_id(batch, name))
            .option("txnVersion", batch.batch_id)
            .option("userMetadata", _user_metadata(batch))
        )
        with _explained_errors():
            if target.is_path:
                writer.save(table)
                return
            if target.columns(rows.sparkSession) is None:
                target.create(rows)  # the commit that creates a table would lose its `userMetadata`
            writer.saveAsTable(table)

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
    """Merge the rows of each batch into a Delta table by a key: they replace, insert or delete the rows of their keys.

    The rows of a batch are kept on the executors for that time, because a MERGE reads them more than once. A batch that Spark
    repeats after a crash is skipped. The table is created if it doesn't exist. For rollbacks see `append_once`.

    Args:
        table: A table in the catalog, or a path, which contains a `/`.
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
    target = _DeltaTable(table)

    def write(rows: DataFrame, batch: Batch) -> None:
        session = rows.sparkSession
        with _explained_errors():
            columns = target.columns(session)
            if columns is None:
                fitting = rule.rows_of_new_table(rows)
                target.create(fitting)
                columns = fitting.columns
        rule.check_columns(rows, columns, target.description)
        settings = {
            _TXN_APP_ID: _txn_app_id(batch, name),
            _TXN_VERSION: str(batch.batch_id),
            _USER_METADATA: _user_metadata(batch),
        }
        with session_settings(session, settings):
            rule.run(rows, target.reference, columns)

    return TableSink(target, write, name=name, on_rollback=on_rollback)


@dataclass(frozen=True, slots=True)
class _DeltaTable:
    """A `Table` of Delta, by its name or its path."""

    table: str

    @property
    def description(self) -> str:
        return f"Delta table {self.table}"

    @property
    def harmless(self) -> Collection[str]:
        return ("OPTIMIZE", "VACUUM START", "VACUUM END", "RESTORE")

    @property
    def is_path(self) -> bool:
        return "/" in self.table

    @property
    def reference(self) -> str:
        """The table in SQL."""
        return f"delta.`{self.table}`" if self.is_path else self.table

    def columns(self, session: SparkSession) -> list[str] | None:
        """Return the columns; None if the table doesn't exist."""
        try:
            if not self.is_path:
                exists = session.catalog.tableExists(self.table)
                return session.table(self.table).columns if exists else None
            return session.read.format("delta").load(self.table).columns
        except PySparkException as error:
            if any(condition in str(error) for condition in _MISSING):
                return None
            raise

    def create(self, rows: DataFrame) -> None:
        """Create the table with the columns of rows, and without rows."""
        writer = rows.sparkSession.createDataFrame([], rows.schema).write.format("delta")
        writer = writer.mode("append")
        if self.is_path:
            writer.save(self.table)
        else:
            writer.saveAsTable(self.table)

    def history(self, session: SparkSession) -> Iterable[Commit]:
        with _explained_errors():
            if self.columns(session) is None:
                return []
        rows = session.sql(f"DESCRIBE HISTORY {self.reference}").selectExpr(
            "version",
            "operation",
            "userMetadata",
            "CAST(operationParameters['version'] AS long) AS restored",
        )
        return _effective(sorted(rows.collect(), key=lambda row: int(row.version), reverse=True))

    def restore_command(self, session: SparkSession, version: Version) -> str:
        del session
        return f"RESTORE TABLE {self.reference} TO VERSION AS OF {version}"


def _effective(history: Iterable[Any]) -> Iterator[Commit]:
    """Yield the commits whose effect is in a table, without those that a RESTORE has undone; the newest first."""
    limit = None
    for row in history:
        if limit is None or row.version <= limit:
            yield Commit(row.version, row.operation, _parse_batch(row.userMetadata))
            limit = row.restored if row.operation == "RESTORE" else limit


def _parse_batch(metadata: str | None) -> Batch | None:
    try:
        return _DECODER.decode(metadata or "").holdfast
    except msgspec.MsgspecError:
        return None  # a commit of another program


def _txn_app_id(batch: Batch, name: str) -> str:
    return f"{batch.application_id}-{name}" if name else batch.application_id


def _user_metadata(batch: Batch) -> str:
    return msgspec.json.encode(_UserMetadata(batch)).decode()


@contextmanager
def _explained_errors() -> Iterator[None]:
    """Explain the error of a Spark without Delta. Raises `InvalidRequestError`."""
    try:
        yield
    except Exception as error:  # Spark's own classes, and py4j's
        if "DATA_SOURCE_NOT_FOUND" not in str(error):
            raise
        version = ".".join(pyspark.__version__.split(".")[:2])
        raise InvalidRequestError(
            f"Spark has no Delta: start it with the package of PySpark {version}, such as "
            f"spark.jars.packages=io.delta:delta-spark_{version}_2.13:4.4.0, and with spark.sql.extensions="
            "io.delta.sql.DeltaSparkSessionExtension and spark.sql.catalog.spark_catalog="
            "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        ) from error
