"""Values and lists of a state as columns of its table, and back as Python objects."""

from collections.abc import Callable, Sequence
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
from holdfast.backends.keyed.columns import concatenate_arrays, from_arrow, take_arrow, take_or_null
from holdfast.backends.keyed.table import Flags, TableSpec
from holdfast.backends.serializers import Serializer, migrated_column
from holdfast.errors import InvalidRequestError


class ValueForm:
    """Values of a type: the fields of a struct are columns, any other value is a single column.

    Args:
        name: The state's name, for errors.
        serializer: Makes columns of values.
        subject: The noun for the values in errors.

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
    """Lists of elements. With a time to live each element has the time at which it was added, in milliseconds.

    Args:
        name: The state's name, for errors.
        serializer: Makes columns of elements.
        has_times: Whether elements have times.
    """

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
