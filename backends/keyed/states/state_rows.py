"""Rows of a state in its table, which all state types read and write, and the form of its values in their columns."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.arrow import (
    Elements,
    IncompatibleValueError,
    convert_with_fallback,
    offsets_of,
)
from holdfast.backends.descriptors import StateTtlConfig
from holdfast.backends.keyed.columns import concatenate_arrays, from_arrow, take_arrow, take_or_null
from holdfast.backends.keyed.grouping import Positions
from holdfast.backends.keyed.keys import Hash, Keys
from holdfast.backends.keyed.table import Flags, Operation, StateTable, TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.serializers import Serializer, migrated_column
from holdfast.errors import InvalidRequestError


class ValueForm:
    """Values of a type: the fields of a struct are columns, any other value is a single column.

    Errors name the state, and its values by the noun `subject`.

    Attributes:
        native: The immutable Python type whose objects are values as they are; None if there is no such type. A few of its
            objects are refused later: integers of more than 64 bits, and text that is not valid Unicode.
        own: Returns a value as the state gives it back. Raises `InvalidRequestError`, also for None.
        copied: Copies a value before the caller gets it; None if values are immutable.
        quick_copy: The same function as `copied` if a copy is cheap; else None.
        hashable: Returns what dictionaries have in place of a value that can't be hashed; None if values can be.
    """

    def __init__(self, name: str, serializer: Serializer, *, subject: str = "values") -> None:
        self.name = name
        self._subject = subject
        self.serializer = serializer
        quick = serializer.quick
        self.native = None if quick is None or quick.convert else quick.kind
        self.own: Callable[[Any], Any] = (
            self.round_trip if quick is None else convert_with_fallback(quick, self.round_trip)
        )
        self.quick_copy = None if serializer.is_immutable else serializer.quick_copy
        self.copied = None if serializer.is_immutable else self.quick_copy or serializer.copy
        self.hashable = serializer.hashable
        self.type = serializer.storage_type
        field = serializer.field("value")
        parts = list(self.type) if pa.types.is_struct(self.type) else []
        self.is_struct = bool(parts) and len({part.name for part in parts}) == len(parts)
        self.schema = (
            pa.schema(parts, metadata=field.metadata) if self.is_struct else pa.schema([field])
        )

    def columns_of(self, values: pa.Array) -> tuple[pa.Array, ...]:
        """Return the columns of values that are not null."""
        if not self.is_struct:
            return (values,)
        return tuple(values.field(index) for index in range(self.type.num_fields))

    def values_of(self, columns: Sequence[pa.Array], present: Flags | None = None) -> pa.Array:
        """Return the values in columns; null where they are not present."""
        if not self.is_struct:
            return columns[0]
        mask = None if present is None or present.all() else pa.array(~present)
        return pa.StructArray.from_arrays(columns, fields=list(self.type), mask=mask)

    def null_columns(self, rows: int) -> tuple[pa.Array, ...]:
        """Return columns for rows without values."""
        return tuple(pa.nulls(rows, field.type) for field in self.schema)

    def encode(self, values: Elements) -> pa.Array:
        """Convert values to an Arrow array. Raises `InvalidRequestError` for null and for values of another type."""
        try:
            return combine_chunks(self.serializer.encode(values), self.serializer.storage_type)
        except IncompatibleValueError as error:
            raise self._type_error(error) from None

    def round_trip(self, value: Any) -> Any:
        """Return the value as it would be read back from the state, sharing no mutable part. Raises the same as `encode`."""
        try:
            return self.serializer.canonical(value)
        except IncompatibleValueError as error:
            raise self._type_error(error) from None

    def encode_or_null(self, values: Elements) -> pa.Array:
        """Convert values to an Arrow array, and None to null. Raises `InvalidRequestError`."""
        if isinstance(values, pa.ChunkedArray):
            values = combine_chunks(values.chunks, values.type)
        if isinstance(values, pa.Array):
            if not values.null_count:
                return self.encode(values)
            present = values.is_valid().to_numpy(zero_copy_only=False)
            return self._spread(self.encode(take_arrow(values, np.flatnonzero(present))), present)
        if type(values) is list:
            chunks = self.serializer.encode_with_nulls(values)
            if chunks is not None:
                return combine_chunks(chunks, self.type)
        if isinstance(values, list | tuple) and type(None) in set(map(type, values)):
            present = np.fromiter((value is not None for value in values), np.bool_, len(values))
            dense = [value for value in values if value is not None]
            return self._spread(self.encode(dense), present)
        return self.encode(values)

    def decode(self, values: pa.Array) -> list[Any]:
        """Convert values that are not null to objects. Raises `InvalidRequestError` if Python has no object for one."""
        try:
            return self.serializer.decode(pa.chunked_array([values], values.type))
        except InvalidRequestError as error:
            message = f"{self._subject} of state {self.name!r}: {error.args[0]}"
            raise InvalidRequestError(message) from None

    def objects(self, values: pa.Array, present: Flags) -> list[Any]:
        """Convert values to Python objects; None where they are not present."""
        if present.all():
            return self.decode(values)
        objects: list[Any] = [None] * len(present)
        dense = self.decode(take_arrow(values, np.flatnonzero(present)))
        for index, value in zip(np.flatnonzero(present).tolist(), dense, strict=True):
            objects[index] = value
        return objects

    def migrate(self, stored: TableSpec, columns: Sequence[pa.Array]) -> tuple[pa.Array, ...]:
        """Convert columns that were stored with another type. Raises `StateMigrationError`."""
        if stored.is_struct:
            field = pa.field(
                "value", pa.struct(list(stored.values)), metadata=stored.values.metadata
            )
            values = pa.StructArray.from_arrays(columns, fields=list(stored.values))
        else:
            field, values = stored.values.field(0), columns[0]
        chunked = pa.chunked_array([values], field.type)
        now = migrated_column(self.name, field, chunked, self.serializer)
        return self.columns_of(combine_chunks(now.chunks, self.type))

    def _type_error(self, error: IncompatibleValueError) -> InvalidRequestError:
        message = (
            f"{self._subject} don't fit state {self.name!r} of type {self.serializer.name}: {error}"
        )
        return InvalidRequestError(message)

    @staticmethod
    def _spread(values: pa.Array, present: Flags) -> pa.Array:
        rows = np.where(present, np.cumsum(present) - 1, -1)
        return take_or_null(from_arrow(values), rows, values.type)


def combine_chunks(chunks: Sequence[pa.Array], type: pa.DataType) -> pa.Array:
    """Combine chunks into a single array. Raises the same as `concatenate_arrays`."""
    if len(chunks) == 1:
        return chunks[0]
    return concatenate_arrays(chunks) if chunks else pa.array([], type)


_TIME = pa.field("ts", pa.int64(), nullable=False)


class ListForm(ValueForm):
    """Lists of elements. With a time to live each element has the time at which it was added, in milliseconds."""

    def __init__(self, name: str, serializer: Serializer, *, has_times: bool) -> None:
        super().__init__(name, serializer)
        self.has_times = has_times
        self.element_type = self.type
        metadata = self.schema.metadata if self.is_struct else self.schema.field(0).metadata
        inner = pa.struct([_TIME, ("element", self.type)]) if has_times else self.type
        self.type = pa.list_(inner)
        self.is_struct = False
        self.schema = pa.schema([pa.field("value", self.type, metadata=metadata)])

    def lists_of(self, offsets: npt.NDArray[np.int64], elements: pa.Array, now_ms: int) -> pa.Array:
        """Build the column of lists, with one time for all elements."""
        if self.has_times:
            elements = self._with_times(
                pa.array(np.full(len(elements), now_ms, np.int64)), elements
            )
        return _lists(offsets, elements, self.type)

    def _with_times(self, times: pa.Array, elements: pa.Array) -> pa.Array:
        fields = [_TIME, pa.field("element", self.element_type)]
        return pa.StructArray.from_arrays([times, elements], fields=fields)

    def migrate(self, stored: TableSpec, columns: Sequence[pa.Array]) -> tuple[pa.Array, ...]:
        field, (lists,) = stored.values.field(0), columns
        offsets, elements = offsets_of(lists), lists.flatten()
        times = None
        if stored.ttl_ms is not None:
            times, elements = elements.field(0), elements.field(1)
        before = pa.field("element", elements.type, metadata=field.metadata)
        chunked = pa.chunked_array([elements], elements.type)
        now = migrated_column(self.name, before, chunked, self.serializer)
        elements = combine_chunks(now.chunks, self.element_type)
        if self.has_times:
            elements = self._with_times(times, elements)
        mask = lists.is_null() if lists.null_count else None
        return (_lists(offsets, elements, self.type, mask),)


def plain_lists(
    lists: pa.Array, element_type: pa.DataType, *, living_after_ms: int | None
) -> pa.Array:
    """Strip the times of elements from stored lists; lists without elements become null.

    Elements of the time `living_after_ms` or before are dropped; None keeps all elements.
    """
    offsets, structs = offsets_of(lists), lists.flatten()
    elements = structs.field(1)
    if living_after_ms is not None:
        living = structs.field(0).to_numpy() > living_after_ms
        if not living.all():
            elements = take_arrow(elements, np.flatnonzero(living))
            offsets = np.concatenate([[0], np.cumsum(living, dtype=np.int64)])[offsets]
    empty: Flags = offsets[1:] == offsets[:-1]
    mask = pa.array(empty) if empty.any() else None
    return _lists(offsets, elements, pa.list_(element_type), mask)


def _lists(
    offsets: npt.NDArray[np.int64],
    elements: pa.Array,
    type: pa.DataType,
    mask: pa.Array | None = None,
) -> pa.Array:
    """Build lists from the start of each one among the elements, and the end of the last one."""
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements, type=type, mask=mask)


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

    Attributes:
        form: How values are stored in the table.
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
        """Return flags of the identities with a value, and the values; null for others. May restart times to live."""
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
        """Fold the value of each row of the batch into that of its key, None without one, in the order of rows."""
        self.rows.check_length(len(values), len(keys.codes), "rows")
        self.rows.flush()
        form, table = self.rows.form, self.rows.table
        present, columns = table.get(keys.identities)
        results = form.objects(form.values_of(columns, present), present)
        for index, value in zip(keys.codes.tolist(), values, strict=True):
            results[index] = fold(results[index], value)
        if len(keys):
            self.rows.put(keys, form.encode(results))
