"""Models of idempotent sinks: each handles a repeated batch like a kind of real sink."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Row = Mapping[str, Any]


class Sink(Protocol):
    """A table that a query writes to."""

    def write(self, batch_id: int, rows: Sequence[Row], application: str, /) -> None:
        """Write the output of a batch. Spark may repeat a batch after a crash."""
        ...

    def go_back(self, batch_id: int) -> None:
        """Prepare for a query that resumes after an earlier batch, as docs/savepoints.md requires."""
        ...

    def difference(self, outputs: Mapping[int, Sequence[Row]]) -> str:
        """Return how the table differs from the outputs of the batches that count; empty if it does not."""
        ...


@dataclass(slots=True)
class ReplacingSink:
    """Replaces what it has of a batch id, as a directory for each batch does.

    After a rollback it keeps the rows of later batches until their ids are repeated.
    """

    batches: dict[int, Sequence[Row]] = field(default_factory=dict)

    def write(self, batch_id: int, rows: Sequence[Row], _application: str, /) -> None:
        self.batches[batch_id] = rows

    def go_back(self, batch_id: int) -> None:
        """Do nothing: repeated batches replace the old rows."""

    def difference(self, outputs: Mapping[int, Sequence[Row]]) -> str:
        wrong = [
            f"batch {batch_id} has {self.batches.get(batch_id)}, not {rows}"
            for batch_id, rows in outputs.items()
            if sorted_rows(self.batches.get(batch_id, ())) != sorted_rows(rows)
        ]
        return "; ".join(wrong)


@dataclass(slots=True)
class TransactionalSink:
    """Appends, and skips versions that an application has written, as Delta does by `txnAppId` and `txnVersion`.

    Deleting rows does not delete the marks, and neither does Delta's `RESTORE`.

    Attributes:
        marks: The last version of each application. Queries that write to one table share it.
        batches: The rows, with the batch that wrote them.
    """

    marks: dict[str, int]
    batches: list[tuple[int, Sequence[Row]]] = field(default_factory=list)

    def write(self, batch_id: int, rows: Sequence[Row], application: str, /) -> None:
        if self.marks.get(application, -1) < batch_id:
            self.marks[application] = batch_id
            self.batches.append((batch_id, rows))

    def go_back(self, batch_id: int) -> None:
        self.batches = [each for each in self.batches if each[0] <= batch_id]

    def difference(self, outputs: Mapping[int, Sequence[Row]]) -> str:
        given = sorted_rows([row for _, rows in self.batches for row in rows])
        right = sorted_rows([row for rows in outputs.values() for row in rows])
        return "" if given == right else f"{given}, not {right}"


@dataclass(slots=True)
class MergingSink:
    """Overwrites rows that have the same key.

    Attributes:
        rows: The rows by key.
        versions: The rows by key after each batch.
    """

    rows: dict[Any, Row] = field(default_factory=dict)
    versions: dict[int, dict[Any, Row]] = field(default_factory=dict)

    def write(self, batch_id: int, rows: Sequence[Row], _application: str, /) -> None:
        self.rows = {**self.rows, **_by_key(rows)}
        self.versions[batch_id] = self.rows

    def go_back(self, batch_id: int) -> None:
        self.rows = self.versions.get(batch_id, {})

    def difference(self, outputs: Mapping[int, Sequence[Row]]) -> str:
        right: dict[Any, Row] = {}
        for rows in outputs.values():
            right |= _by_key(rows)
        return "" if self.rows == right else f"{self.rows}, not {right}"


def _by_key(rows: Sequence[Row]) -> dict[Any, Row]:
    """Return the rows by key, which is the first column, and by window."""
    return {
        (next(iter(row.values())), row.get("window_start"), row.get("window_end")): row
        for row in rows
    }


def sorted_rows(rows: Sequence[Row]) -> list[str]:
    """Return the rows as sorted texts."""
    return sorted(repr(sorted(row.items())) for row in rows)
