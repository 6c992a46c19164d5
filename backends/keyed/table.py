"""The interface between states and backends: tables of rows with an identity.

A state is a table. A row's identity is its id columns: the key, then the namespace, then a sub key, which is
a map's key or a timer's time. Rows with the same identity are a history, newest first: a PUT ends it, a DELETE ends
it without a value, an APPEND is an operand that is folded with older rows.

    sort key    key group << 48 | 48 bits of the key's hash; with a namespace or sub key 24 bits of the key's
                hash and 24 of the other columns' hash, so that all rows of a key are adjacent
    of a timer  key group << 48 | (time >> 10) + 2**31 << 16 | 16 bits of the key's hash: by time, which is in
                milliseconds since 1970. Timers of the same step of 1,024 ms are in no particular order
    identity    the id columns only: two identities can have the same sort key
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.arrow import nullable_type
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import AsyncSnapshot
from holdfast.common import MAX_INT64
from holdfast.errors import InvalidRequestError
from holdfast.locations.storages import CheckpointStreamFactory

MIN_TIME_MS = -MAX_INT64 - 1

GROUP = 1 << 48
"""Number of sort keys in a key group."""

STEP = 1 << 16
"""Number of sort keys in a key group's time step."""

_STEP_BITS = 10
_MIDDLE = 1 << 31
_LOW_BITS = np.uint64(16)
_KEY_GROUP_BITS = np.uint64(48)

SortKeys = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
StateKind = Literal["value", "list", "map", "reducing", "aggregating", "timers"]
Fold = Literal["sum", "count", "min", "max", "any", "all", "concatenate", "hll_union"]
"""The combination of two operands. Counts are added like sums; `concatenate` takes lists, `hll_union` sketches as bytes."""


class Operation(IntEnum):
    """The effect of a row on the value of its identity. The numbers are stored and never change."""

    PUT = 0
    APPEND = 1
    DELETE = 2


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the names and types that identify the columns of a key or namespace.

    Nullability and metadata are dropped, because Spark infers them for each query.
    """
    return pa.schema([(field.name, nullable_type(field.type)) for field in schema])


NO_COLUMNS = pa.schema([])


@dataclass(frozen=True)
class TableSpec:
    """The name, columns and types of a table; stored with it, so that it can be read without the job.

    Attributes:
        name: The state's name, unique in the operator.
        kind: The kind of the state.
        key: The key's columns, by the names that the operator is keyed by.
        namespace: The namespace's columns; empty for states without namespaces.
        sub_key: The column of a map's key, or of a timer's time; empty for other kinds.
        values: The value columns, with the metadata of their serializers. A struct that is a state's value is
            stored as its fields.
        folds: For each value column, how operands are combined; empty for tables without appends.
        ttl_ms: Milliseconds after the time of its batch at which a row expires; None if rows don't expire.
        is_struct: Whether the state's value is a struct of all value columns, not a single column.
    """

    name: str
    kind: StateKind
    key: pa.Schema
    values: pa.Schema
    namespace: pa.Schema = NO_COLUMNS
    sub_key: pa.Schema = NO_COLUMNS
    folds: tuple[Fold, ...] = ()
    ttl_ms: int | None = None
    is_struct: bool = False

    @cached_property
    def id_fields(self) -> tuple[pa.Field, ...]:
        """The id columns: key, namespace, sub key."""
        return (*self.key, *self.namespace, *self.sub_key)

    @cached_property
    def stored_fields(self) -> tuple[pa.Field, ...]:
        """The id columns and value columns, by unique names: each is prefixed with its part."""
        parts = {
            "key": self.key,
            "namespace": self.namespace,
            "sub": self.sub_key,
            "value": self.values,
        }
        fields = [
            field.with_name(f"{prefix}.{field.name}")
            for prefix, part in parts.items()
            for field in part
        ]
        if len(self.values) == 1 and not self.is_struct:
            fields[-1] = fields[-1].with_name("value")
        return tuple(fields)

    def equals(self, other: "TableSpec") -> bool:
        """Compare including the metadata of serializers, which `==` ignores."""
        return self == other and all(
            getattr(self, part).equals(getattr(other, part), check_metadata=True)
            for part in ("values", "sub_key", "key", "namespace")
        )


@dataclass(frozen=True)
class Identities:
    """Distinct identities, ascending by sort key.

    Attributes:
        sort_keys: The sort key of each identity; equal ones are adjacent.
        columns: The id columns, in the order of `TableSpec.id_fields`; each as long as `sort_keys`.
    """

    sort_keys: SortKeys
    columns: tuple[pa.Array, ...]

    def __len__(self) -> int:
        return len(self.sort_keys)


@dataclass(frozen=True)
class TableRows:
    """Rows of a scan: one per identity, folded, ascending by sort key, without deleted and expired ones.

    Attributes:
        identities: The identities of the rows.
        values: The value columns.
        times_ms: The time of each row's last change, milliseconds; None for tables without TTL.
    """

    identities: Identities
    values: tuple[pa.Array, ...]
    times_ms: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.identities)

    def migrate(self, stored: TableSpec, migration: "Migration | None") -> "TableRows":
        """Return the rows with migrated values; the same rows without a migration."""
        if migration is None:
            return self
        return TableRows(self.identities, migration(stored, self.values), self.times_ms)


class Migration(Protocol):
    """Migrates values from the types that they were stored with to the present types."""

    def __call__(self, stored: TableSpec, values: Sequence[pa.Array], /) -> tuple[pa.Array, ...]:
        """Return the value columns of the new types. Raises `StateMigrationError` if the types are incompatible."""
        ...


class StateTable(Protocol):
    """The rows of one state in one subtask. Used by one thread.

    Sort keys belong to the subtask's key groups; callers check that.
    """

    @property
    def spec(self) -> TableSpec:
        """The name, columns and types of the table."""
        ...

    def get(
        self, identities: Identities, *, include_expired: bool = False
    ) -> tuple[Flags, tuple[pa.Array, ...]]:
        """Return which identities have a row, and the folded values of each; null for identities without a row.

        Args:
            identities: The identities to look up.
            include_expired: Whether expired rows count until they are cleaned up.

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
        """Add a row for each identity, newer than all present rows; values are ignored for a DELETE.

        Args:
            identities: The identities to write.
            values: The value columns, each as long as `identities`.
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
        """Return the rows whose sort key is in a range `first[i] <= key < end[i]`; ranges ascend and don't overlap.

        Args:
            first: Inclusive lower bound of each range.
            end: Exclusive upper bound of each range.
            endings: A flag for each value of a sort key's lowest 16 bits, whether to return such rows; None returns
                all. Timers are sorted by time, and this selects a key's timers without reading their ids.
            include_expired: Whether expired rows count until they are cleaned up.
        """
        ...

    def scan(self, step_rows: int = 1 << 20) -> Iterator[TableRows]:
        """Iterate over all rows, ascending by sort key, about `step_rows` at a time."""
        ...

    def delete_up_to(self, time_ms: int) -> None:
        """Delete the timers of a table up to and including this time, without reading their values."""
        ...

    def earliest_time(self) -> int | None:
        """Return the earliest time of a table of timers; None if it is empty."""
        ...


class StateTables(Protocol):
    """All tables of one subtask: a backend.

    Source:
        Flink, AbstractKeyedStateBackend.
    """

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups of the subtask."""
        ...

    def table(
        self, spec: TableSpec, migration: Migration | None = None, *, rewrite: bool = False
    ) -> StateTable:
        """Return the table of a state, restored or new.

        Args:
            spec: The table's present columns and types.
            migration: Migrates the values of a restored table with other types.
            rewrite: Whether the next snapshot must migrate all values, because a later migration couldn't read
                the stored ones. Otherwise a backend may rewrite them gradually.

        Raises:
            StateMigrationError: The restored table has another kind, other keys, or other folds.
        """
        ...

    def specs(self) -> Mapping[str, TableSpec]:
        """Return the specification of every table by the state's name, including restored tables not yet requested."""
        ...

    def drop(self, name: str) -> None:
        """Remove the table of a state, if it exists, without reading it.

        Earlier snapshots still include it.
        """
        ...

    def advance_time(self, now_ms: int) -> None:
        """Set the time of the batch in milliseconds: written rows get it, and rows expire by it."""
        ...

    def snapshot(self, checkpoint_id: int, factory: CheckpointStreamFactory) -> AsyncSnapshot:
        """Capture all rows; the returned part writes them, in any thread."""
        ...

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Handle a completed checkpoint: later ones may refer to its files."""
        ...

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Handle an aborted checkpoint: its files are deleted, its rows stay in the tables."""
        ...

    def close(self) -> None:
        """Release memory and files. May be called twice."""
        ...


def whole_ms(time_ms: int) -> int:
    """Return the time as an int. Raises `InvalidRequestError` if it is not an integer of 64 bits."""
    try:
        number = operator.index(time_ms)
    except TypeError:
        number = None
    if number is None or not MIN_TIME_MS <= number <= MAX_INT64:
        message = f"a time must be a 64-bit integer of milliseconds since 1970, got {time_ms!r}"
        raise InvalidRequestError(message)
    return number


def time_part(times_ms: npt.NDArray[np.int64]) -> SortKeys:
    """Return the bits of timers' sort keys that encode the time, between the key group and the key's hash.

    Times before 1902 or after 4199 are clamped to the first or last step.
    """
    steps = np.clip((times_ms >> _STEP_BITS) + _MIDDLE, 0, 2 * _MIDDLE - 1)
    part: SortKeys = steps.astype(np.uint64) << _LOW_BITS
    return part


def advance_to_time(sort_keys: SortKeys, time_ms: int) -> SortKeys:
    """Raise sort keys to the first of their key group whose timers can be later than the time."""
    step = time_part(np.array([max(time_ms, -(1 << 62))]))
    groups = sort_keys >> _KEY_GROUP_BITS << _KEY_GROUP_BITS
    advanced: SortKeys = np.maximum(sort_keys, groups | step)
    return advanced
