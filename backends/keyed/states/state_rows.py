"""Rows of a state in its table, which all state types read and write."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.descriptors import StateTtlConfig
from holdfast.backends.keyed.columns import take_arrow
from holdfast.backends.keyed.grouping import Positions
from holdfast.backends.keyed.keys import Hash, Keys
from holdfast.backends.keyed.states.value_form import ValueForm
from holdfast.backends.keyed.table import Flags, Operation, StateTable
from holdfast.backends.keys import KeyGroupRange
from holdfast.errors import InvalidRequestError


class CheckedRows:
    """Rows of a state, and the checks of keys and values. The checks raise `InvalidRequestError`.

    Args:
        table: The table of the rows.
        key_groups: The key groups of the subtask.
        hash_of: The function that hashes namespaces and sub keys.

    Attributes:
        flush: Writes back changes of the current key's state.
    """

    def __init__(self, table: StateTable, key_groups: KeyGroupRange, hash_of: Hash) -> None:
        self.table = table
        self.hash_of = hash_of
        self.flush: Callable[[], None] = lambda: None
        self._key_groups = key_groups

    @property
    def name(self) -> str:
        """The state's name."""
        return self.table.spec.name

    @cached_property
    def _fields(self) -> tuple[pa.Field, ...]:
        """The columns that keys must have."""
        return (*self.table.spec.key, *self.table.spec.namespace)

    def begin(self, keys: Keys) -> None:
        """Check keys, and flush changes of the current key's state."""
        self.check(keys)
        self.flush()

    def check(self, keys: Keys) -> None:
        """Check that keys belong to this subtask, and that they and their namespaces have the types of the state's."""
        keys.check(self._key_groups)
        if len(keys.columns) != len(self._fields):
            names = ", ".join(map(repr, self.table.spec.namespace.names)) or "no column"
            raise InvalidRequestError(
                f"state {self.name!r} has namespaces of {names}, and the keys "
                f"have {len(keys.columns) - keys.width} namespace columns; use `in_namespaces` for states "
                "with namespaces, and `keys` for states without"
            )
        for field, given in zip(self._fields, keys.columns, strict=True):
            if not given.type.equals(field.type):
                raise InvalidRequestError(
                    f"key column {field.name!r} of state {self.name!r} must be of type {field.type}, got {given.type}"
                )

    def check_length(self, given: int, expected: int, of: str) -> None:
        """Check the number of values."""
        if given != expected:
            raise InvalidRequestError(
                f"state {self.name!r}: {given} values were given for {expected} {of}"
            )

    def key_indices(self, keys: Keys, indices: npt.ArrayLike | None, rows: int) -> Positions:
        """Check the index of each row's key, and return it: as given, or that of the batch."""
        at = keys.codes
        if indices is not None:
            at = np.asarray(indices)
            if len(at) and not (at.dtype.kind in "iu" and 0 <= at.min() <= at.max() < len(keys)):
                raise InvalidRequestError(
                    f"state {self.name!r}: a key index is not an integer, or out of range for {len(keys)} keys"
                )
        self.check_length(rows, len(at), "rows")
        return at.astype(np.int64, copy=False)


class ValueRows(CheckedRows):
    """Rows of a state with values.

    Args:
        table: The table of the rows.
        form: How values are stored in the table.
        key_groups: The key groups of the subtask.
        hash_of: The function that hashes namespaces and sub keys.
        ttl: The time to live of rows.

    Attributes:
        has_ttl: Whether rows have a time to live.
        is_refreshed_by_reading: Whether a read restarts the time to live.
        shows_expired: Whether reads return expired rows that are not deleted yet.
    """

    def __init__(
        self,
        table: StateTable,
        form: ValueForm,
        key_groups: KeyGroupRange,
        hash_of: Hash,
        ttl: StateTtlConfig | None = None,
    ) -> None:
        super().__init__(table, key_groups, hash_of)
        self.form = form
        ttl = None if ttl is None or ttl.ttl_ms is None else ttl
        self.has_ttl = ttl is not None
        self.is_refreshed_by_reading = ttl is not None and ttl.is_refreshed_by_reading
        self.shows_expired = ttl is not None and ttl.shows_expired

    def get(self, identities: Keys) -> tuple[Flags, pa.Array]:
        """Return flags of the identities that have a value, and the values; null for the others.

        Restarts the time to live of the values if reads do so.
        """
        present, values, living = self.peek(identities)
        if self.is_refreshed_by_reading:
            self.put(identities, values, living)
        return present, values

    def peek(self, identities: Keys) -> tuple[Flags, pa.Array, Flags]:
        """Return the same as `get` and flags of the values that have not expired; restarts no time to live."""
        present, columns = self.table.get(identities.identities, include_expired=self.shows_expired)
        living = present
        if self.shows_expired:
            living, _ = self.table.get(identities.identities)
        return present, self.form.values_of(columns, present), living

    def put(self, identities: Keys, values: pa.Array, chosen: Flags | None = None) -> None:
        """Put the values of all identities, or of the chosen ones."""
        if chosen is not None and not chosen.all():
            rows = np.flatnonzero(chosen)
            identities, values = identities.take(rows), take_arrow(values, rows)
        self.write(identities, values, Operation.PUT)

    def delete(self, identities: Keys) -> None:
        """Delete the rows of the identities."""
        if len(identities):
            columns = self.form.null_columns(len(identities))
            self.table.write(identities.identities, columns, Operation.DELETE)

    def put_or_delete(self, identities: Keys, values: pa.Array) -> None:
        """Put values, and delete the rows of identities whose value is null."""
        if not values.null_count:
            self.put(identities, values)
            return
        missing = values.is_null().to_numpy(zero_copy_only=False)
        operations = np.where(missing, np.uint8(Operation.DELETE), np.uint8(Operation.PUT))
        self.write(identities, values, operations)

    def write(
        self, identities: Keys, values: pa.Array, operation: Operation | npt.NDArray[np.uint8]
    ) -> None:
        """Write a row for each identity, with one operation or one for each row. DELETE ignores the value."""
        if len(identities):
            self.table.write(identities.identities, self.form.columns_of(values), operation)


class StateColumns:
    """A state of many keys at once, with a row for each key.

    Every method raises `InvalidRequestError` if keys have other types, namespaces or key groups than the state, or if a
    value is null or of another type than the state's.

    Args:
        rows: The rows of the state.
    """

    def __init__(self, rows: ValueRows) -> None:
        self.rows = rows

    def get(self, keys: Keys) -> pa.Array:
        """Return the value of each key; null for keys without a value."""
        self.rows.begin(keys)
        _, values = self.rows.get(keys)
        return values

    def clear(self, keys: Keys) -> None:
        """Delete the values."""
        self.rows.begin(keys)
        self.rows.delete(keys)

    def _fold(
        self, keys: Keys, values: Sequence[Any], fold: Callable[[Any | None, Any], Any]
    ) -> None:
        """Fold the value of each row of the batch into that of its key, in the order of rows.

        Args:
            keys: The keys.
            values: A value for each row.
            fold: Returns a key's new value from its value before, None without one, and the value of a row.
        """
        self.rows.check_length(len(values), len(keys.codes), "rows")
        self.rows.flush()
        form, table = self.rows.form, self.rows.table
        present, columns = table.get(keys.identities)
        results = form.objects(form.values_of(columns, present), present)
        for index, value in zip(keys.codes.tolist(), values, strict=True):
            results[index] = fold(results[index], value)
        if len(keys):
            self.rows.put(keys, form.encode(results))
