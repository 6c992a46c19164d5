"""The rows of a state, as all kinds of state use them: values in and out of its table."""

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
    """The rows of a state, for keys that are checked first.

    Args:
        table: The table of the rows.
        key_groups: The key groups that the subtask has.
        hash_of: The function that hashes namespaces and sub keys.

    Attributes:
        settle: Writes back what the current key's states have changed.
    """

    def __init__(self, table: StateTable, key_groups: KeyGroupRange, hash_of: Hash) -> None:
        self.table = table
        self.hash_of = hash_of
        self.settle: Callable[[], None] = _nothing
        self._key_groups = key_groups

    @property
    def name(self) -> str:
        """The state's name."""
        return self.table.spec.name

    @cached_property
    def _fields(self) -> tuple[pa.Field, ...]:
        """The columns that keys have to have."""
        return (*self.table.spec.key, *self.table.spec.namespace)

    def begin(self, keys: Keys) -> None:
        """Check keys, and write back what was changed by the current key. Raises what `check` does."""
        self.check(keys)
        self.settle()

    def check(self, keys: Keys) -> None:
        """Refuse keys that this state can't have.

        Raises:
            InvalidRequestError: A key is of another subtask, or has another type, or no namespace where
                the state has one, or one where it has none.
        """
        keys.check(self._key_groups)
        if len(keys.columns) != len(self._fields):
            message = (
                f"state {self.name!r} has namespaces of {_listed(self.table.spec.namespace)}, and the keys "
                f"have {len(keys.columns) - keys.width} columns of a namespace; get keys by `in_namespaces` "
                "for states with namespaces, and by `keys` for those without"
            )
            raise InvalidRequestError(message)
        for field, given in zip(self._fields, keys.columns, strict=True):
            if not given.type.equals(field.type):
                message = (
                    f"state {self.name!r} has {field.name!r} of type {field.type} as a part of the key, "
                    f"and a column of type {given.type} was given"
                )
                raise InvalidRequestError(message)


class ValueRows(CheckedRows):
    """The rows of a state with values, in their own form.

    Args:
        table: The table of the rows.
        form: How values are stored in the table.
        key_groups: The key groups that the subtask has.
        hash_of: The function that hashes namespaces and sub keys.
        ttl: How long rows live.

    Attributes:
        has_ttl: Whether rows have a time to live.
        is_refreshed_by_reading: Whether the time of rows starts anew when they are read.
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
        lives = ttl if ttl is not None and ttl.ttl_ms is not None else None
        self.has_ttl = lives is not None
        self.is_refreshed_by_reading = lives is not None and lives.is_refreshed_by_reading
        self.shows_expired = lives is not None and lives.shows_expired

    def get(self, identities: Keys) -> tuple[Flags, pa.Array]:
        """Which identities have a value, and the values; null where there is none.

        If reads make the time of values start anew, this read does.
        """
        present, values, living = self.peek(identities)
        if self.is_refreshed_by_reading:
            self.put(identities, values, living)
        return present, values

    def peek(self, identities: Keys) -> tuple[Flags, pa.Array, Flags]:
        """The rows that `get` returns, without making their time to live start anew."""
        present, columns = self.table.get(identities.identities, include_expired=self.shows_expired)
        living = present
        if self.shows_expired:
            living, _ = self.table.get(identities.identities)
        return present, self.form.values_of(columns, present), living

    def objects(self, identities: Keys) -> list[Any]:
        """The values that are there as Python objects, None where there is none; no time starts anew."""
        present, columns = self.table.get(identities.identities)
        return self.form.objects(self.form.values_of(columns, present), present)

    def put(self, identities: Keys, values: pa.Array, chosen: Flags | None = None) -> None:
        """Put values; of all identities, or of those that are chosen."""
        self._write(identities, values, Operation.PUT, chosen)

    def append(self, identities: Keys, values: pa.Array) -> None:
        """Add operands."""
        self._write(identities, values, Operation.APPEND, None)

    def delete(self, identities: Keys, chosen: Flags | None = None) -> None:
        """Remove the rows; of all identities, or of those that are chosen."""
        if chosen is not None:
            identities = identities.take(np.flatnonzero(chosen))
        if len(identities):
            columns = self.form.nothing(len(identities))
            self.table.write(identities.identities, columns, Operation.DELETE)

    def put_or_delete(self, identities: Keys, values: pa.Array) -> None:
        """Put the values that are there, and remove the rows of those that are null."""
        if not values.null_count:
            self.put(identities, values)
            return
        missing = values.is_null().to_numpy(zero_copy_only=False)
        operations = np.where(missing, np.uint8(Operation.DELETE), np.uint8(Operation.PUT))
        self.write(identities, values, operations)

    def write(self, identities: Keys, values: pa.Array, operations: npt.NDArray[np.uint8]) -> None:
        """Write a row of each identity. Values where the operation is DELETE don't matter."""
        if len(identities):
            self.table.write(identities.identities, self.form.columns_of(values), operations)

    def _write(
        self, identities: Keys, values: pa.Array, operation: Operation, chosen: Flags | None
    ) -> None:
        if chosen is not None and not chosen.all():
            rows = np.flatnonzero(chosen)
            identities, values = identities.take(rows), take_arrow(values, rows)
        if len(identities):
            self.table.write(identities.identities, self.form.columns_of(values), operation)


def check_length(name: str, given: int, expected: int, of: str) -> None:
    """Refuse columns that are not as long as they must be. Raises `InvalidRequestError`."""
    if given != expected:
        message = f"state {name!r}: {given} values were given for {expected} {of}"
        raise InvalidRequestError(message)


def key_indices(name: str, keys: Keys, indices: npt.ArrayLike | None) -> Positions:
    """The index of each row's key: as given, or as the batch has it. Raises `InvalidRequestError` for what is none."""
    if indices is None:
        return keys.codes
    at = np.asarray(indices)
    if len(at) and not (at.dtype.kind in "iu" and 0 <= at.min() <= at.max() < len(keys)):
        message = f"state {name!r}: an index is none of {len(keys)} keys"
        raise InvalidRequestError(message)
    return at.astype(np.int64)


def _listed(fields: Sequence[pa.Field]) -> str:
    return ", ".join(repr(field.name) for field in fields) or "no column"


def _nothing() -> None:
    pass
