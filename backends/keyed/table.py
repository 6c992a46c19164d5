"""The port between kinds of state and backends: tables of rows that are known by their identity.

A state is a table. A row's identity is its id columns: the key, then the namespace, then a sub key, which is
a map's key or a timer's time. Rows with one identity are a history, newest first: a PUT ends it, a DELETE ends
it without a value, an APPEND is an operand that is folded with what is older.

    sort key    key group << 48 | 48 bits of the key's hash; with a namespace or sub key 24 bits of the key's
                hash and 24 of theirs, so that all rows of a key lie together. Timers: see `timers`
    identity    the id columns alone: two identities may have one sort key
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.arrow import nullable_type
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import AsyncSnapshot
from holdfast.locations.storages import CheckpointStreamFactory

SortKeys = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
StateKind = Literal["value", "list", "map", "reducing", "aggregating", "timers"]
Fold = Literal["sum", "count", "min", "max", "any", "all", "concatenate", "hll_union"]
"""How two operands become one; counts are added up like sums, `concatenate` is of lists, `hll_union` of sketches as bytes."""


class Operation(IntEnum):
    """How a row changes the value of its identity. The numbers are stored and never change."""

    PUT = 0
    APPEND = 1
    DELETE = 2


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Names and types, by which the columns of a key or namespace are known.

    What else a schema says is left out, such as where nulls may be, or a file's own metadata: Spark infers that anew for
    each query.
    """
    return pa.schema([(field.name, nullable_type(field.type)) for field in schema])


def _nothing() -> pa.Schema:
    return pa.schema([])


def _prefixed(prefix: str, fields: pa.Schema) -> list[pa.Field]:
    return [field.with_name(f"{prefix}.{field.name}") for field in fields]


@dataclass(frozen=True)
class TableSpec:
    """The name, columns and types of a table; stored with it, so that it can be read without the job.

    Attributes:
        name: The state's name, unique in the operator.
        kind: Which kind of state the rows are of.
        key: The key's columns, by the names that the operator is keyed by.
        namespace: The namespace's columns; none for states without.
        sub_key: The column of a map's key, or of a timer's time; none for other kinds.
        values: The columns of values, with what their serializers store of themselves. A struct that is a
            state's value lies here as its fields.
        folds: For each column of values, how operands combine; empty for tables that are only put.
        ttl_ms: Milliseconds that a row lives after the time of its batch; None for ever.
        is_struct: Whether the state's value is a struct of all columns of values, not a single column.
    """

    name: str
    kind: StateKind
    key: pa.Schema
    values: pa.Schema
    namespace: pa.Schema = field(default_factory=_nothing)
    sub_key: pa.Schema = field(default_factory=_nothing)
    folds: tuple[Fold, ...] = ()
    ttl_ms: int | None = None
    is_struct: bool = False

    @cached_property
    def id_fields(self) -> tuple[pa.Field, ...]:
        """The id columns: key, namespace, sub key."""
        return (*self.key, *self.namespace, *self.sub_key)

    @cached_property
    def stored_fields(self) -> tuple[pa.Field, ...]:
        """Id columns and columns of values, by names that no two of them share: what they are of comes before their own."""
        values = _prefixed("value", self.values)
        if len(values) == 1 and not self.is_struct:
            values = [values[0].with_name("value")]
        ids = ("key", self.key), ("namespace", self.namespace), ("sub", self.sub_key)
        return (*(field for prefix, part in ids for field in _prefixed(prefix, part)), *values)

    def equals(self, other: "TableSpec") -> bool:
        """Whether both are stored alike: with what serializers store of themselves, which `==` leaves out."""
        return self == other and all(
            mine.equals(its, check_metadata=True)
            for mine, its in (
                (self.values, other.values),
                (self.sub_key, other.sub_key),
                (self.key, other.key),
                (self.namespace, other.namespace),
            )
        )


@dataclass(frozen=True)
class Identities:
    """Distinct identities, ascending by sort key.

    Attributes:
        sort_keys: The sort key of each identity; equal ones lie side by side.
        columns: The id columns, in the order of `TableSpec.id_fields`; each as long as `sort_keys`.
    """

    sort_keys: SortKeys
    columns: tuple[pa.Array, ...]

    def __len__(self) -> int:
        return len(self.sort_keys)


@dataclass(frozen=True)
class TableRows:
    """Rows that a scan gives: one an identity, folded, ascending by sort key; none is deleted or expired.

    Attributes:
        identities: The identities that the rows belong to.
        values: The columns of values.
        times_ms: The time of each row's last change, milliseconds; None for tables without TTL.
    """

    identities: Identities
    values: tuple[pa.Array, ...]
    times_ms: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.identities)


class Migration(Protocol):
    """Migrates values that were stored with older types to the present types."""

    def __call__(self, stored: TableSpec, values: Sequence[pa.Array], /) -> tuple[pa.Array, ...]:
        """The columns of values, of the new types. Raises `StateMigrationError` if there is no way."""
        ...


class StateTable(Protocol):
    """The rows of one state in one subtask. Used by one thread.

    Sort keys are of the subtask's key groups; who calls has checked that.
    """

    @property
    def spec(self) -> TableSpec:
        """What the table holds."""
        ...

    def get(
        self, identities: Identities, *, include_expired: bool = False
    ) -> tuple[Flags, tuple[pa.Array, ...]]:
        """Which identities have a row, and the folded values of each; null where there is none.

        Args:
            identities: The identities whose rows are read.
            include_expired: Whether rows whose time is over count while they are still there.

        Raises:
            CheckpointCorruptedError: A row can't be read.
        """
        ...

    def write(
        self,
        identities: Identities,
        values: Sequence[pa.Array],
        operation: Operation | npt.NDArray[np.uint8] = Operation.PUT,
    ) -> None:
        """Add a row for each identity, newer than all that are there.

        Args:
            identities: The identities whose rows are written.
            values: The columns of values, each as long as `identities`; for a DELETE their values
                don't matter.
            operation: The operation of all rows, or of each row.
        """
        ...

    def rows_between(
        self,
        first: SortKeys,
        end: SortKeys,
        *,
        endings: Flags | None = None,
        include_expired: bool = False,
    ) -> TableRows:
        """The rows whose sort key is in one of the ranges `first[i] <= key < end[i]`, which ascend and don't overlap.

        Args:
            first: Least sort key of each range.
            end: Least sort key above each range.
            endings: For each number of 16 bits whether rows count whose sort key ends in it; None if all do. Timers
                lie by time, and a key's are told by this without a look at their ids.
            include_expired: Whether rows whose time is over count while they are still there.
        """
        ...

    def scan(self, step_rows: int = 1 << 20) -> Iterator[TableRows]:
        """All rows, ascending by sort key, about `step_rows` at a time."""
        ...

    def forget_up_to(self, time_ms: int) -> None:
        """Drop the rows of a table of timers whose time is at most this, without reading them."""
        ...

    def earliest_time(self) -> int | None:
        """The least time of a table of timers; None if there is no timer."""
        ...


class StateTables(Protocol):
    """All tables of one subtask: a backend.

    Source:
        Flink, AbstractKeyedStateBackend, as far as it is about rows.
    """

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups of the subtask."""
        ...

    def table(
        self, spec: TableSpec, migration: Migration | None = None, *, rewrite: bool = False
    ) -> StateTable:
        """The table of a state: the restored one, or a new one.

        Args:
            spec: The table's columns and types from now on.
            migration: For a restored table with other values.
            rewrite: Whether the next snapshot has no values any more as they were stored, because another migration
                could not read them. Else a backend may write them anew little by little.

        Raises:
            StateMigrationError: The restored table has another kind, other keys, or folds otherwise.
        """
        ...

    def specs(self) -> Mapping[str, TableSpec]:
        """Every table, by the state's name, including restored tables that nobody asked for."""
        ...

    def drop(self, name: str) -> None:
        """Remove the table of a state, without reading it; nothing happens if there is none.

        Snapshots that were taken before have it still.
        """
        ...

    def advance_time(self, now_ms: int) -> None:
        """Set the time of the batch, milliseconds: it is the time of written rows, and rows expire by it."""
        ...

    def snapshot(self, checkpoint_id: int, factory: CheckpointStreamFactory) -> AsyncSnapshot:
        """Capture all rows; the snapshot writes them, in any thread."""
        ...

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint exists: later ones may refer to its files."""
        ...

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """The checkpoint was given up: its files are gone, its rows are not."""
        ...

    def close(self) -> None:
        """Release memory and files. May be called twice."""
        ...
