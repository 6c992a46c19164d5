"""Managed keyed state in a checkpoint: tables of rows by key, in segments."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from holdfast.backends.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.backends.inspection.state_parts import (
    CHANGED,
    POSITIONS,
    VALUE,
    Extent,
    ShownColumn,
    StatePart,
    form_error,
)
from holdfast.backends.keyed import (
    BlockCache,
    ColumnarStateTables,
    KeyedStateBackend,
    Keys,
    Migration,
    RestoredTable,
    TableManifest,
    TableRows,
    TableSpec,
    open_table,
    read_manifest,
    readable_handles,
    rows_of_keys,
    sort_key_range,
)
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.serializers import IncompatibleTypeError, change_of, stored_serializer
from holdfast.backends.snapshot import has_same_form
from holdfast.common import raise_shortage
from holdfast.errors import (
    CheckpointCorruptedError,
    CheckpointError,
    InvalidRequestError,
    StateMigrationError,
)
from holdfast.locations.handles import SegmentsStateHandle

_CHANGED_TYPE = pa.timestamp("ms", "UTC")


def tables_of(
    subtask: int, handle: SegmentsStateHandle
) -> Iterator[tuple[str | None, str, StatePart]]:
    """List the tables of a handle. Reads only its manifest, unless the handle refers to RocksDB files.

    If the manifest can't be read, there is one state without a name, which fails when it is read.
    """
    try:
        (readable,) = readable_handles([handle])
        manifest = read_manifest([readable], KeyGroupRange(*handle.key_groups))
    except CheckpointError as error:
        yield None, "keyed", LostTables(subtask, handle, error)
        return
    for name, table in manifest.tables.items():
        yield (
            name,
            f"keyed {table.spec.kind}",
            Table(subtask, readable, name, table, None if readable is handle else handle),
        )


def _same_table(
    subtask: int,
    native: SegmentsStateHandle,
    name: str,
    keys: Keys | None,
) -> StatePart:
    """Open a table in another process, on a host that may lack the files that were written from RocksDB files."""
    parts = {known: part for known, _, part in tables_of(subtask, native)}
    part = parts.get(name) or parts[None]
    return replace(part, keys=keys) if isinstance(part, Table) else part


@dataclass(frozen=True, slots=True)
class Table:
    """A subtask's part of a state by key: a row for each key, and for each sub key if the state has them.

    Attributes:
        native: The checkpoint's handle to the rows, if they are in RocksDB files.
        keys: The keys whose rows are read; None for all keys.
        opened: The table, if it stays open for several reads.
    """

    subtask: int
    handle: SegmentsStateHandle
    name: str
    table: TableManifest
    native: SegmentsStateHandle | None = None
    keys: Keys | None = None
    opened: RestoredTable | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the handle to RocksDB files instead of the rows: tasks read the files themselves."""
        if self.native is None:
            return Table, tuple(getattr(self, field.name) for field in fields(self))
        return _same_table, (self.subtask, self.native, self.name, self.keys)

    @property
    def elements(self) -> int:
        """Number of stored rows: a row that was changed or deleted counts until it is merged."""
        return sum(run.rows for run in self.table.runs)

    def extents(self) -> list[Extent]:
        return [
            (self.handle.segments[piece.segment], piece.first, round(piece.size))
            for piece in self.table.slices()
        ]

    def stored_schema(self) -> pa.Schema:
        return shown_schema(self.table.spec)

    def columns(self, stored: pa.Schema, /) -> tuple[ShownColumn, ...]:
        return tuple(ShownColumn.of(field, field.name, self.name) for field in stored)

    def split(self) -> list["Table"]:
        return [self]

    def batches(self, stored: pa.Schema, /) -> Iterator[pa.RecordBatch]:
        if not has_same_form(self.stored_schema(), stored, self.name):
            raise form_error(self.name, self.subtask)
        table = self.opened or self.open()
        for rows in self._rows(table):
            columns = [*rows.identities.columns, *shown_values(table.spec, rows.values)]
            if rows.times_ms is not None:
                columns.append(pa.array(rows.times_ms.astype(np.int64), _CHANGED_TYPE))
            yield pa.record_batch(columns, schema=stored)

    def open(self, cache: BlockCache | None = None) -> RestoredTable:
        """Open the table; with a cache, for several reads."""
        return open_table(self.handle, self.table, cache)

    def within(self, first: int, end: int) -> "Table":
        """Return the part with only the rows that have `first` <= sort key < `end`."""
        low, high = sort_key_range(KeyGroupRange(*self.handle.key_groups))
        return replace(self, table=self.table.within(max(first, low), min(end, high)))

    def rows(self) -> Iterator[TableRows]:
        """Read the rows, ascending by sort key."""
        return self._rows(self.open())

    def at_keys(self, keys: Keys) -> "Table | None":
        """Return the part with only the rows of keys; None if all of them belong to other subtasks."""
        first, last = self.handle.key_groups
        groups = keys.key_groups
        own = ((groups >= first) & (groups <= last)).nonzero()[0]
        return replace(self, keys=keys.take(own)) if len(own) else None

    def _rows(self, table: RestoredTable) -> Iterator[TableRows]:
        migration = _migration_to(table.spec)
        if self.keys is None:
            return table.rows(migration=migration)
        return rows_of_keys(table, self.keys, migration)


@dataclass(frozen=True, slots=True)
class LostTables:
    """A subtask's keyed state whose manifest can't be read: reads raise the error of the manifest."""

    subtask: int
    handle: SegmentsStateHandle
    error: CheckpointError
    elements: int = 0

    def extents(self) -> list[Extent]:
        return [(stream, 0, stream.size) for stream in self.handle.streams()]

    def stored_schema(self) -> NoReturn:
        raise self.error

    def columns(self, stored: pa.Schema, /) -> NoReturn:  # noqa: ARG002  # a part's
        raise self.error

    def split(self) -> list["LostTables"]:
        return [self]

    def batches(self, stored: pa.Schema, /) -> NoReturn:  # noqa: ARG002  # a part's
        raise self.error


def shown_types(spec: TableSpec) -> str:
    """Return the types of a table's keys and values, for people."""
    fields = [field for field in shown_schema(spec) if field.name != CHANGED]
    return " to ".join(stored_serializer(field, spec.name).name for field in fields)


def shown_schema(spec: TableSpec) -> pa.Schema:
    """Return the columns in which a table is read."""
    names = Counter(field.name for field in spec.id_fields)
    names.update([*POSITIONS, VALUE, CHANGED])
    parts = (("key", spec.key), ("namespace", spec.namespace), ("sub", spec.sub_key))
    fields = [
        field.with_name(f"{part}.{field.name}") if names[field.name] > 1 else field
        for part, of_part in parts
        for field in of_part
    ]
    fields += _value_fields(spec)
    if spec.ttl_ms is not None:
        fields.append(pa.field(CHANGED, _CHANGED_TYPE))
    return pa.schema(fields)


def _value_fields(spec: TableSpec) -> list[pa.Field]:
    """Return the column of values, if the state has values."""
    if spec.is_struct:
        return [pa.field(VALUE, pa.struct(list(spec.values)), metadata=spec.values.metadata)]
    if len(spec.values) > 1:
        message = (
            f"state {spec.name!r} has values in columns {spec.values.names}, and is not a struct"
        )
        raise CheckpointCorruptedError(message)
    return [field.with_name(VALUE) for field in spec.values]


def _migration_to(spec: TableSpec) -> Migration:
    """Return a function that migrates values that were stored before the state's type changed."""

    def migrate(stored: TableSpec, columns: Sequence[pa.Array]) -> tuple[pa.Array, ...]:
        (before,), (values,) = _value_fields(stored), shown_values(stored, columns)
        (now,) = _value_fields(spec)
        reason = "they were stored in another form"
        is_same_form = (
            stored_serializer(before, spec.name).kind == stored_serializer(now, spec.name).kind
        )
        try:
            changed = change_of(before.type, now.type)(values) if is_same_form else None
        except IncompatibleTypeError as error:
            changed, reason = None, str(error)
        except pa.ArrowException as error:
            raise_shortage(error)
            changed, reason = None, "Arrow can't convert the values"
        if changed is None:
            message = (
                f"state {spec.name!r} still contains values of the old type {before.type}, and only the job can convert "
                f"them to {now.type}: {reason}; read the state in a later checkpoint, after they were written or "
                "merged again"
            )
            raise StateMigrationError(message)
        return tuple(changed.flatten()) if spec.is_struct else (changed,)

    return migrate


def shown_values(spec: TableSpec, values: Iterable[pa.Array]) -> list[pa.Array]:
    if not spec.is_struct:
        return list(values)
    return [pa.StructArray.from_arrays(list(values), fields=list(spec.values))]


KeyedDescriptor = (
    ValueStateDescriptor
    | ListStateDescriptor
    | MapStateDescriptor
    | ReducingStateDescriptor
    | AggregatingStateDescriptor
)

GETTERS: dict[type, Callable[..., Any]] = {
    ValueStateDescriptor: KeyedStateBackend.get_state,
    ListStateDescriptor: KeyedStateBackend.get_list_state,
    MapStateDescriptor: KeyedStateBackend.get_map_state,
    ReducingStateDescriptor: KeyedStateBackend.get_reducing_state,
    AggregatingStateDescriptor: KeyedStateBackend.get_aggregating_state,
}
"""The method of the backend that returns the state, by the type of the descriptor."""


def restore_outcome_of(
    table: Table, descriptor: KeyedDescriptor, max_parallelism: int
) -> tuple[bool, str, str]:
    """Find the outcome of a restore of a subtask's part of a state by the job's descriptor.

    Returns:
        Whether values stay unchanged; the types that they get, for people; and the reason why they can't be restored,
        empty if they can.
    """
    groups = KeyGroupRange(*table.handle.key_groups)
    stored = table.table.spec
    tables = ColumnarStateTables(groups, [table.handle])
    try:
        backend = KeyedStateBackend(tables, stored.key, max_parallelism, groups)
        GETTERS[type(descriptor)](backend, descriptor, stored.namespace)
    except (StateMigrationError, InvalidRequestError) as error:
        return False, "", str(error.args[0])
    else:
        now = tables.specs()[descriptor.name]
        return now.values.equals(stored.values, check_metadata=True), shown_types(now), ""
    finally:
        tables.close()
