"""Sinks for tables of PostgreSQL: rows replaced by a key, or appended by a commit in two phases. It needs `holdfast[postgres]`."""

import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame

from holdfast.common import message_pack_decoder
from holdfast.errors import InvalidRequestError
from holdfast.spark.operators import Sink
from holdfast.spark.sinks.merging import DELETED, MergeRule
from holdfast.spark.worker_task import worker_task

try:
    import psycopg
    from psycopg import sql
except ImportError as error:
    raise ImportError(
        "sinks for PostgreSQL need psycopg: pip install 'holdfast[postgres]'"
    ) from error

__all__ = ["Connect", "TwoPhaseCommitSink", "upsert"]

Connect = Callable[[], psycopg.Connection]
"""Opens a connection; it is pickled to the executors."""


_NAMES_DECODER = message_pack_decoder(list[str])


def upsert(
    connect: Connect,
    table: str,
    *,
    key: Sequence[str],
    deletes: str | None = None,
    latest: str | None = None,
) -> Sink:
    """Insert the rows of each batch into a table, and update or delete the rows that have their keys.

    A batch that Spark repeats after a crash has the same effect again, if the operator is deterministic. Executors write
    the rows, each partition in a separate transaction, so a reader can see half a batch.

    Args:
        connect: Opens a connection to the database.
        table: Rows go to its columns of the same names. It needs a unique constraint on the key.
        key: The columns of the key. None of them may be null.
        deletes: An SQL condition of Spark, or the name of a boolean column: such a row deletes the row of its key.
            Columns that only the condition uses need not be in the table.
        latest: The column whose greatest value wins among rows of one key. Without it several rows of a key in one batch are
            an error.

    Raises:
        InvalidRequestError: In the batch: the table, its unique constraint or a column is missing.
    """
    rule = MergeRule(key, deletes, latest)

    def write(rows: DataFrame, batch_id: int) -> None:
        del batch_id
        with closing(connect()) as connection:
            columns = _columns(connection, table)
            rule.check_columns(rows, columns, f"table {table}")
            statements = _Upsert.of(table, rule, [name for name in rows.columns if name in columns])
            statements.check(connection)
        write_partition = _UpsertPartition(connect, statements)
        source = rule.mark_rows(rows).repartition(*rule.keys)
        source.select(*statements.columns, DELETED).mapInArrow(
            write_partition, "rows long"
        ).collect()

    return write


@dataclass(frozen=True, slots=True)
class _Upsert:
    """The statements that write rows by a key. They are text, because they are sent to executors."""

    columns: tuple[str, ...]
    stage: str
    copy: str
    delete: str
    insert: str

    @classmethod
    def of(cls, table: str, rule: MergeRule, columns: Sequence[str]) -> "_Upsert":
        """Return the statements for rows with these columns."""
        target = _identifier(table)
        names = [sql.Identifier(name) for name in columns]
        others = [sql.Identifier(name) for name in columns if name not in rule.on]
        update: sql.Composable = sql.SQL("DO NOTHING")
        if others:
            assignments = [sql.SQL("{0} = EXCLUDED.{0}").format(name) for name in others]
            update = sql.SQL("DO UPDATE SET {}").format(sql.SQL(", ").join(assignments))
        matches = [sql.SQL("t.{0} = s.{0}").format(sql.Identifier(name)) for name in rule.on]
        values = {
            "table": target,
            "deleted": sql.Identifier(DELETED),
            "columns": sql.SQL(", ").join(names),
            "key": sql.SQL(", ").join(map(sql.Identifier, rule.on)),
            "matches": sql.SQL(" AND ").join(matches),
            "update": update,
        }

        def text(statement: str) -> str:
            return sql.SQL(statement).format(**values).as_string()

        return cls(
            columns=tuple(columns),
            stage=text(
                "CREATE TEMP TABLE holdfast_rows ON COMMIT DROP AS "
                "SELECT {columns}, false AS {deleted} FROM {table} WITH NO DATA"
            ),
            copy=text("COPY holdfast_rows ({columns}, {deleted}) FROM STDIN"),
            delete=text(
                "DELETE FROM {table} AS t USING holdfast_rows AS s WHERE {matches} AND s.{deleted}"
            ),
            insert=text(
                "INSERT INTO {table} ({columns}) SELECT {columns} FROM holdfast_rows "
                "WHERE NOT {deleted} ON CONFLICT ({key}) {update}"
            ),
        )

    def check(self, connection: psycopg.Connection) -> None:
        """Refuse a table without the unique constraint. Raises `InvalidRequestError`."""
        with connection.transaction(force_rollback=True):
            connection.execute(self.stage.encode())
            try:
                connection.execute(b"EXPLAIN " + self.insert.encode())
            except psycopg.errors.InvalidColumnReference as error:
                message = f"the table has no unique constraint on the key: {error}"
                raise InvalidRequestError(message) from error


@dataclass(frozen=True, slots=True)
class _UpsertPartition:
    """Writes the rows of one task in a transaction, and yields their number."""

    connect: Connect
    statements: _Upsert

    @worker_task
    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = chain.from_iterable(_rows(batch) for batch in batches)
        first = next(rows, None)
        if first is None:
            return
        with closing(self.connect()) as connection, connection.transaction():
            connection.execute(self.statements.stage.encode())
            count = _copy(connection, self.statements.copy, chain([first], rows))
            connection.execute(self.statements.delete.encode())
            try:
                connection.execute(self.statements.insert.encode())
            except psycopg.errors.CardinalityViolation as error:
                message = (
                    "a batch has several rows of one key; pass latest= with the column that orders them, and "
                    "the greatest wins"
                )
                raise InvalidRequestError(message) from error
        yield pa.record_batch({"rows": [count]})


class TwoPhaseCommitSink:
    """Appends rows to a table by a commit in two phases; they are not visible before their checkpoint exists.

        sink = TwoPhaseCommitSink(partial(psycopg.connect, service="flights"), "flights", job="flights")
        query = flights.writeStream.foreachBatch(stateful(operator, sink=sink, uid="flights"))

    Each partition is written by an executor, in a separate transaction that is prepared
    (`PREPARE TRANSACTION`). The names of those whose tasks have succeeded are stored in the
    checkpoint; once it exists they are committed. Transactions that no existing checkpoint names are
    rolled back: attempts that failed or were killed, and those of a driver that lost the job. While
    it isn't decided which driver's checkpoint will exist, both keep their transactions.

    They are in each other's way if rows may not be there twice: the table must not have a
    unique constraint on what the sink writes. If it has one, use `upsert`.

    The server needs `max_prepared_transactions` of at least twice the partitions of a batch.

    Args:
        connect: Opens a connection to the database.
        table: Rows go to its columns of the same names.
        job: A name that no other job has in this server, at most 100 of `A-Z a-z 0-9 . _ -`. Also a
            fork of a query needs its own name, or each rolls back the transactions of the other.
    """

    def __init__(self, connect: Connect, table: str, *, job: str) -> None:
        if not re.fullmatch(r"[\w.-]{1,100}", job, re.ASCII):
            raise InvalidRequestError(
                f"job is {job!r}; it must be 1 to 100 letters, digits, '.', '_', '-'"
            )
        self._connect = connect
        self._table = table
        self._job = job
        self._is_started = False
        self._attempt = ""
        self._written: list[str] = []
        self._to_commit: list[str] = []

    def initialize_state(self, state: bytes | None) -> None:
        """Restore the transactions that the last checkpoint names, committed or not."""
        self._is_started = True
        self._written = []
        self._to_commit = [] if state is None else _NAMES_DECODER.decode(state)

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Write the rows of a batch, and prepare to commit them."""
        if not self._is_started:
            # Nor would checkpoints name what it writes, and it would be rolled back.
            raise InvalidRequestError(
                "the sink was not given its state; pass it as sink= to stateful(...)"
            )
        # Checkpoint batch_id + 1 will complete the batch. Another driver may be at the same one.
        self._attempt = f"holdfast-{self._job}-{batch_id + 1}-{uuid.uuid4().hex[:16]}"
        write = _WritePartition(self._connect, self._table, tuple(rows.columns), self._attempt)
        prepared = rows.mapInArrow(write, "name string").collect()
        self._written = [row.name for row in prepared]

    def snapshot_state(self, checkpoint_id: int) -> bytes:  # noqa: ARG002  # it is in the names
        """Return the transactions to commit once the checkpoint exists."""
        self._to_commit += self._written
        return msgspec.msgpack.encode(self._to_commit)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Commit the transactions of the checkpoint, and roll back others that were left."""
        with closing(self._connect()) as connection:
            for name, checkpoint, _ in self._in_doubt(connection):
                if name in self._to_commit:
                    _finish(connection.tpc_commit, name)
                elif checkpoint <= checkpoint_id:  # who writes it is decided, and it wasn't this
                    _finish(connection.tpc_rollback, name)
        # If the database is out of reach, they are in the next checkpoint too.
        self._to_commit = []

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Roll back what this attempt has prepared."""
        with closing(self._connect()) as connection:
            for name, checkpoint, attempt in self._in_doubt(connection):
                # The batch can have failed before it came here: then the attempt is of the last.
                if checkpoint == checkpoint_id and attempt == self._attempt:
                    _finish(connection.tpc_rollback, name)

    def _in_doubt(self, connection: psycopg.Connection) -> list[tuple[str, int, str]]:
        """The job's prepared transactions in this database: name, checkpoint, attempt."""
        name = re.compile(rf"(holdfast-{re.escape(self._job)}-(\d+)-[0-9a-f]{{16}})-[0-9a-f]{{16}}")
        return [
            (match[0], int(match[2]), match[1])
            for xid in connection.tpc_recover()
            if xid.database == connection.info.dbname
            and (match := name.fullmatch(xid.gtrid)) is not None
        ]


def _finish(decide: Callable[[str], object], name: str) -> None:
    """Commit or roll back, unless another driver has just done so."""
    with suppress(psycopg.errors.UndefinedObject):
        decide(name)


@dataclass(frozen=True, slots=True)
class _WritePartition:
    """Writes the rows of one task in a transaction, prepares it, and yields its name."""

    connect: Connect
    table: str
    columns: tuple[str, ...]
    attempt: str

    @worker_task
    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = chain.from_iterable(_rows(batch) for batch in batches)
        first = next(rows, None)
        if first is None:
            return
        # Spark may run a task twice; only one of both names comes back to the driver.
        name = f"{self.attempt}-{uuid.uuid4().hex[:16]}"
        copy = sql.SQL("COPY {} ({}) FROM STDIN").format(
            _identifier(self.table), sql.SQL(", ").join(map(sql.Identifier, self.columns))
        )
        with closing(self.connect()) as connection:
            connection.tpc_begin(name)
            _copy(connection, copy.as_string(), chain([first], rows))
            connection.tpc_prepare()
        yield pa.record_batch({"name": [name]})


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[object, ...]]:
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _copy(
    connection: psycopg.Connection, statement: str, rows: Iterable[tuple[object, ...]]
) -> int:
    """Copy rows into a table, and return their number."""
    count = 0
    with connection.cursor() as cursor, cursor.copy(statement.encode()) as copying:
        for row in rows:
            copying.write_row(row)
            count += 1
    return count


def _columns(connection: psycopg.Connection, table: str) -> list[str]:
    """Return the columns of a table. Raises `InvalidRequestError` if it doesn't exist."""
    query = sql.SQL("SELECT * FROM {} LIMIT 0").format(_identifier(table))
    try:
        description = connection.execute(query).description or []
    except psycopg.errors.UndefinedTable as error:
        message = f"table {table} doesn't exist in the database; create it first, with its key"
        raise InvalidRequestError(message) from error
    connection.rollback()
    return [column.name for column in description]


def _identifier(table: str) -> sql.Identifier:
    return sql.Identifier(*table.split("."))
