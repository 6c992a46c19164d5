"""A sink that writes each batch of a query to a table once, and finds its batches in the history of the table."""

import logging
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, get_args

from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import InvalidRequestError
from holdfast.spark.query import current_batch

OnRollback: TypeAlias = Literal["restore", "keep"]

_log = logging.getLogger(__name__)

_QUERY_ID_LENGTH = len("6d5f0d3a-91c0-4d5e-8f10-6c1a3b0e2f77")


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of a query; after a rollback or a restore it has another application id."""

    application_id: str
    batch_id: int

    @property
    def query_id(self) -> str:
        """Spark's id of the query; a rollback or a restore appends a token to it."""
        return self.application_id[:_QUERY_ID_LENGTH]

    @property
    def is_of_changed_query(self) -> bool:
        """True if the query was rolled back or restored, so that a table may have later batches of it."""
        return self.application_id != self.query_id

    def replaces(self, other: "Batch") -> bool:
        """Return whether a rollback or restore of the query has revoked the other batch, which this one repeats.

        This has to be the first batch after the rollback.
        """
        return (
            other.query_id == self.query_id
            and other.application_id != self.application_id
            and other.batch_id >= self.batch_id
        )


Version: TypeAlias = int
"""The version of a Delta table, or the snapshot id of an Iceberg table."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of a table.

    Attributes:
        operation: Its name in the history of the table.
        batch: The batch that it belongs to; None for a commit of another program.
    """

    version: Version
    operation: str
    batch: Batch | None


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The commits of revoked batches in a table.

    Attributes:
        restore_to: The version before the first of them; None if there is no such version.
        batches: The ids of these batches.
        others: The commits of other programs that came after the first of them.
    """

    restore_to: Version | None
    batches: Sequence[int]
    others: Sequence[Commit]


def find_leftovers(
    history: Iterable[Commit], batch: Batch, harmless: Collection[str]
) -> Leftovers | None:
    """Return the commits of batches that a rollback has revoked; None without such commits.

    Args:
        history: The commits whose effect is in the table, the newest first.
        batch: The batch that runs, the first after the rollback that writes to the table.
        harmless: Operations that change no rows, which may be undone together with the batches.
    """
    revoked: list[int] = []
    others: list[Commit] = []
    since_oldest: list[Commit] = []
    restore_to = None
    for commit in history:
        if commit.batch is not None and batch.replaces(commit.batch):
            revoked.append(commit.batch.batch_id)
            others += since_oldest
            since_oldest = []
            restore_to = None
            continue
        restore_to = commit.version if restore_to is None else restore_to
        if commit.batch is not None and commit.batch.application_id == batch.application_id:
            break  # its first batch has treated the commits before
        if commit.operation not in harmless:
            since_oldest.append(commit)
    if not revoked:
        return None
    return Leftovers(restore_to, sorted(set(revoked)), others)


class Table(Protocol):
    """A table that a sink writes, through a session of Spark."""

    @property
    def description(self) -> str:
        """The format and name of the table, for errors."""
        ...

    @property
    def harmless(self) -> Collection[str]:
        """Operations in its history that change no rows."""
        ...

    def history(self, session: SparkSession) -> Iterable[Commit]:
        """Yield the commits whose effect is in the table, the newest first; none if it doesn't exist."""
        ...

    def restore_command(self, session: SparkSession, version: Version) -> str:
        """Return the SQL statement that restores a version."""
        ...


class TableSink:
    """A sink that writes each batch to a table once.

    In the first batch after a rollback or a restore of the query, it removes the rows of revoked batches.

    Args:
        table: The table.
        write: Writes the rows of a batch, unless the table has them.
        name: Distinguishes sinks of a query that write to the same table.
        on_rollback: `keep` if rows of revoked batches stay in the table.
    """

    def __init__(
        self,
        table: Table,
        write: Callable[[DataFrame, Batch], None],
        *,
        name: str,
        on_rollback: OnRollback,
    ) -> None:
        check_choice(on_rollback, OnRollback, "on_rollback")
        if not re.fullmatch(r"[\w.-]{0,100}", name, re.ASCII):
            message = f"name is {name!r}; it must be at most 100 letters, digits, '.', '_', '-'"
            raise InvalidRequestError(message)
        self._table = table
        self._write = write
        self._name = name
        self._on_rollback = on_rollback
        self._checked = ""  # the application id of the last check for revoked batches

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Write the rows of a batch."""
        running = current_batch()
        target = f"{self._table.description} {self._name}"
        if target in running.targets:
            raise InvalidRequestError(
                f"{self._table.description} is written twice in one batch, and the second write would be "
                "taken for a repetition of the first. Give each sink its own name, such as name='late'"
            )
        batch = Batch(running.application_id(), batch_id)
        if batch.is_of_changed_query and self._checked != batch.application_id:
            if self._on_rollback == "restore":
                self._remove_revoked(rows.sparkSession, batch)
            self._checked = batch.application_id
        self._write(rows, batch)
        running.targets.add(target)

    def _remove_revoked(self, session: SparkSession, batch: Batch) -> None:
        leftovers = find_leftovers(self._table.history(session), batch, self._table.harmless)
        if leftovers is None:
            return
        batches = f"{leftovers.batches[0]} to {leftovers.batches[-1]}"
        problem = (
            f"{self._table.description} has rows of the batches {batches}, which a rollback or restore of the query "
            "has revoked"
        )
        way_out = (
            "delete the rows of these batches, and start the query once with on_rollback='keep'"
        )
        if leftovers.restore_to is None:
            message = f"{problem}, and no version before them: {way_out}"
            raise InvalidRequestError(message, kind="revoked-batches")
        command = self._table.restore_command(session, leftovers.restore_to)
        if leftovers.others:
            others = ", ".join(f"{each.version} ({each.operation})" for each in leftovers.others)
            raise InvalidRequestError(
                f"{problem}, and after them there are commits of others: {others}. If those may be undone too, run "
                f"`{command}` and start the query again. Else {way_out}",
                kind="revoked-batches",
            )
        _log.warning("%s; restoring the table: %s", problem, command)
        session.sql(command).collect()


def check_choice(value: str, choices: object, name: str) -> None:
    """Refuse a value that is not one of a `Literal`. Raises `InvalidRequestError`."""
    known = get_args(choices)
    if value not in known:
        raise InvalidRequestError(f"{name} is {value!r}; it must be one of {known}")
