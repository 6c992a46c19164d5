"""The rows of a state, as all kinds of state use them: values in and out of its table."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.descriptors import StateTtlConfig
from holdfast.backends.keyed.keys import Hash, Keys
from holdfast.backends.keyed.states.value_form import ValueForm
from holdfast.backends.keyed.table import Flags, Operation, StateTable
from holdfast.backends.keys import KeyGroupRange
from holdfast.errors import InvalidRequestError


class StateRows:
    """The rows of a state, with values in their own form.

    Args:
        table: Where they lie.
        form: How values lie there.
        key_groups: The key groups that the subtask has.
        hash_of: What hashes namespaces and sub keys.
        ttl: How long rows live.
    """

    def __init__(
        self,
        table: StateTable,
        form: ValueForm,
        key_groups: KeyGroupRange,
        hash_of: Hash,
        ttl: StateTtlConfig | None = None,
    ) -> None:
        self.table = table
        self.form = form
        self.hash_of = hash_of
        self.has_ttl = ttl is not None and ttl.ttl_ms is not None
        self.is_refreshed_by_reading = (
            ttl is not None and self.has_ttl and ttl.is_refreshed_by_reading
        )
        self.shows_expired = ttl is not None and self.has_ttl and ttl.shows_expired
        self.settle: Callable[[], None] = _nothing
        self._key_groups = key_groups
        self._width = len(table.spec.key) + len(table.spec.namespace)

    @property
    def name(self) -> str:
        """The state's name."""
        return self.form.name

    def check(self, keys: Keys) -> None:
        """Refuse keys that this state can't have.

        Raises:
            InvalidRequestError: A key is of another subtask, or has another type, or no namespace where
                the state has one, or one where it has none.
        """
        keys.check(self._key_groups)
        spec = self.table.spec
        if len(keys.columns) != self._width:
            message = (
                f"state {self.name!r} has namespaces of {_listed(spec.namespace)}, and the keys have "
                f"{len(keys.columns) - keys.width} columns of a namespace; "
                "get keys by `in_namespaces` for states with namespaces, and by `keys` for those without"
            )
            raise InvalidRequestError(message)
        for field, given in zip((*spec.key, *spec.namespace), keys.columns, strict=True):
            if not given.type.equals(field.type):
                message = (
                    f"state {self.name!r} has {field.name!r} of type {field.type} as a part of the key, "
                    f"and a column of type {given.type} was given"
                )
                raise InvalidRequestError(message)

    def get(self, identities: Keys) -> tuple[Flags, pa.Array]:
        """Which identities have a value, and the values; null where there is none.

        Where reading makes the time of values start anew, it does.
        """
        present, columns = self.table.get(identities.identities, include_expired=self.shows_expired)
        values = self.form.values_of(columns, present)
        if self.is_refreshed_by_reading and present.any():
            living = present
            if self.shows_expired:
                living, _ = self.table.get(identities.identities)
            self.put(identities, values, living)
        return present, values

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

    def write(self, identities: Keys, values: pa.Array, operations: npt.NDArray[np.uint8]) -> None:
        """Write a row of each identity. Values where the operation is DELETE don't matter."""
        if len(identities):
            self.table.write(identities.identities, self.form.columns_of(values), operations)

    def _write(
        self, identities: Keys, values: pa.Array, operation: Operation, chosen: Flags | None
    ) -> None:
        if chosen is not None and not chosen.all():
            identities = identities.take(np.flatnonzero(chosen))
            values = values.filter(pa.array(chosen))
        if len(identities):
            self.table.write(identities.identities, self.form.columns_of(values), operation)


def check_length(name: str, given: int, expected: int, of: str) -> None:
    """Refuse columns that are not as long as they must be. Raises `InvalidRequestError`."""
    if given != expected:
        message = f"state {name!r}: {given} values were given for {expected} {of}"
        raise InvalidRequestError(message)


def _listed(fields: Sequence[pa.Field]) -> str:
    return ", ".join(repr(field.name) for field in fields) or "no column"


def _nothing() -> None:
    pass
