"""A sink that commits in two phases: each row of a stream is in a table of PostgreSQL exactly once.

    sink = PostgresSink(partial(psycopg.connect, service="flights"), "flights", job="right-size")
    query = flights.writeStream.foreachBatch(stateful(..., sink=sink, uid="right-size"))

The server needs `max_prepared_transactions` of at least twice the partitions of a batch.
"""

import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain

import msgspec
import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql import DataFrame

Connect = Callable[[], psycopg.Connection]
"""Opens a connection; it is pickled to the executors."""


class PostgresSink:
    """Appends rows to a table; they are not visible before their checkpoint exists.

    Each partition is written by an executor, in a separate transaction that is prepared
    (`PREPARE TRANSACTION`). The names of those whose tasks have succeeded are stored in the
    checkpoint; once it exists they are committed. Transactions that no existing checkpoint names are
    rolled back: attempts that failed or were killed, and those of a driver that lost the job. While
    it isn't decided which driver's checkpoint will exist, both keep their transactions.

    They are in each other's way if rows may not be there twice: the table must not have a
    unique constraint on what the sink writes. Where it has one, let the sink replace rows instead.

    Args:
        connect: Opens a connection to the database.
        table: Rows go to its columns of the same names.
        job: A name that no other job has in this server, at most 100 of `A-Z a-z 0-9 . _ -`. Also a
            fork of a query needs its own name, or each rolls back the transactions of the other.
    """

    def __init__(self, connect: Connect, table: str, *, job: str) -> None:
        if not re.fullmatch(r"[\w.-]{1,100}", job, re.ASCII):
            raise ValueError(f"job is {job!r}; it must be 1 to 100 letters, digits, '.', '_', '-'")
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
        self._to_commit = [] if state is None else msgspec.msgpack.decode(state, type=list[str])

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Write the rows of a batch, and prepare to commit them."""
        if not self._is_started:
            # Nor would checkpoints name what it writes, and it would be rolled back.
            raise RuntimeError(
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

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = chain.from_iterable(_rows(batch) for batch in batches)
        first = next(rows, None)
        if first is None:
            return
        # Spark may run a task twice; only one of both names comes back to the driver.
        name = f"{self.attempt}-{uuid.uuid4().hex[:16]}"
        copy = sql.SQL("COPY {} ({}) FROM STDIN").format(
            sql.Identifier(*self.table.split(".")),
            sql.SQL(", ").join(map(sql.Identifier, self.columns)),
        )
        with closing(self.connect()) as connection:
            connection.tpc_begin(name)
            with connection.cursor() as cursor, cursor.copy(copy) as copying:
                for row in chain([first], rows):
                    copying.write_row(row)
            connection.tpc_prepare()
        yield pa.record_batch({"name": [name]})


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[object, ...]]:
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)
