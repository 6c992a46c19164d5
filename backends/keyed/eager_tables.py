"""Tables whose stored rows are read and migrated as a whole, when they are restored or requested: heap and RocksDB."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from holdfast.backends.keyed.compatibility import check_same_spec
from holdfast.backends.keyed.segments import RestoredTable, resolve_migration
from holdfast.backends.keyed.table import Migration, StateTable, TableRows, TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.errors import InvalidRequestError, StateMigrationError


class EagerTable(StateTable, Protocol):
    """A table that holds rows of one type."""

    def restore(self, chunks: Iterable[TableRows]) -> None:
        """Add rows of a checkpoint, unchanged."""
        ...

    def all_rows(self) -> Iterable[TableRows]:
        """Iterate over all rows, including expired ones."""
        ...


_Table = TypeVar("_Table", bound=EagerTable)


class EagerTables(ABC, Generic[_Table]):
    """The tables of a subtask. Rows that were stored with several types wait until a state with one type is requested."""

    def __init__(self, key_groups: KeyGroupRange) -> None:
        self._now_ms = 0
        self.key_groups = key_groups
        self._tables: dict[str, _Table] = {}
        self._mixed: dict[str, RestoredTable] = {}
        self._requested: set[str] = set()
        self._is_closed = False

    def table(
        self,
        spec: TableSpec,
        migration: Migration | None = None,
        *,
        rewrite: bool = False,  # noqa: ARG002  # all values are rewritten at once
    ) -> _Table:
        self._check_open()
        known = self._tables.get(spec.name)
        if known is not None and spec.name in self._requested:
            check_same_spec(known.spec, spec)
            return known
        if spec.name in self._mixed:
            table = self._create(spec)
            table.restore(self._mixed[spec.name].rows(spec, migration))
            del self._mixed[spec.name]
        elif known is not None:
            table = self._migrate(known, spec, migration)
        else:
            table = self._create(spec)
        self._tables[spec.name] = table
        self._requested.add(spec.name)
        return table

    def specs(self) -> Mapping[str, TableSpec]:
        mixed = {name: table.spec for name, table in self._mixed.items()}
        return mixed | {name: table.spec for name, table in self._tables.items()}

    def drop(self, name: str) -> None:
        if self._tables.pop(name, None) is not None:
            self._delete_rows(name)
        self._mixed.pop(name, None)
        self._requested.discard(name)

    def advance_time(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def close(self) -> None:
        self._is_closed = True
        self._tables.clear()
        self._mixed.clear()

    @abstractmethod
    def _create(self, spec: TableSpec) -> _Table:
        """Return a table that is new, or whose rows are stored by its name."""

    @abstractmethod
    def _delete_rows(self, name: str) -> None:
        """Delete the rows of a dropped table."""

    def _migrate(self, known: _Table, spec: TableSpec, migration: Migration | None) -> _Table:
        """Return a table with the new specification and the rows of the known one."""
        change = resolve_migration(known.spec, spec, migration)
        table = self._create(spec)
        table.restore(rows.migrate(known.spec, change) for rows in known.all_rows())
        return table

    def _restore(self, restored: Iterable[RestoredTable]) -> None:
        for stored in restored:
            name = stored.spec.name
            table = self._create(stored.spec)
            try:
                table.restore(stored.rows())
            except StateMigrationError:
                # It was stored with several types, which only a migration can unify.
                self._delete_rows(name)
                self._mixed[name] = stored
            else:
                self._tables[name] = table

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidRequestError("the backend is closed")

    def _check_snapshot(self) -> None:
        """Reject a snapshot of closed tables, or of tables with rows of several types."""
        self._check_open()
        if self._mixed:
            message = (
                f"states {sorted(self._mixed)} contain values of several types, written before and after their type "
                "was changed, but the job does not declare them; declare them once, so that their values are migrated"
            )
            raise StateMigrationError(message)
