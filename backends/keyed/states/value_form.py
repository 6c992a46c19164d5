"""How values of a state lie in the columns of its table, and how they get there and back."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.backends.arrow import Elements, IncompatibleValueError, convert_with_fallback
from holdfast.backends.keyed.columns import concatenate_arrays, from_arrow, take_arrow, take_or_null
from holdfast.backends.keyed.table import Flags, TableSpec
from holdfast.backends.serializers import Serializer, migrated_column
from holdfast.errors import InvalidRequestError


class ValueForm:
    """Values of a type: a struct lies as its fields, any other value as a single column.

    Args:
        name: The state's name, for errors.
        serializer: Makes columns of values.
        what: What the values are, for errors.

    Attributes:
        native: The immutable Python type whose objects are values as they are; None if there is no such type. A few of its
            objects are refused later: integers of more than 64 bits, and text that is not valid Unicode.
        own: Returns a value as the state gives it back. Raises `InvalidRequestError`, also for None.
        quick_copy: Does what `copied` does, if that takes little time; else None.
        copied: Copies a value that is given to whoever could change it; None if nobody can.
    """

    def __init__(self, name: str, serializer: Serializer, *, what: str = "values") -> None:
        self.name = name
        self._what = what
        self.serializer = serializer
        quick = serializer.quick
        self.native = None if quick is None or quick.convert else quick.kind
        self.own: Callable[[Any], Any] = (
            self.round_trip if quick is None else convert_with_fallback(quick, self.round_trip)
        )
        self.quick_copy = None if serializer.is_immutable else serializer.quick_copy
        self.copied = None if serializer.is_immutable else self.quick_copy or serializer.copy
        self.type = serializer.storage_type
        field = serializer.field("value")
        parts = list(self.type) if pa.types.is_struct(self.type) else []
        self.is_struct = bool(parts) and len({part.name for part in parts}) == len(parts)
        self.schema = (
            pa.schema(parts, metadata=field.metadata) if self.is_struct else pa.schema([field])
        )

    def columns_of(self, values: pa.Array) -> tuple[pa.Array, ...]:
        """The columns of values, none of which is null."""
        if not self.is_struct:
            return (values,)
        return tuple(values.field(index) for index in range(self.type.num_fields))

    def values_of(self, columns: Sequence[pa.Array], present: Flags | None = None) -> pa.Array:
        """The values that lie in columns; null where they are not present."""
        if not self.is_struct:
            return columns[0]
        mask = None if present is None or present.all() else pa.array(~present)
        return pa.StructArray.from_arrays(columns, fields=list(self.type), mask=mask)

    def nothing(self, rows: int) -> tuple[pa.Array, ...]:
        """Columns for rows that have no values."""
        return tuple(pa.nulls(rows, field.type) for field in self.schema)

    def encoded(self, values: Elements) -> pa.Array:
        """Values as an Arrow array. Raises `InvalidRequestError` for what is no value, and for null."""
        try:
            return joined(self.serializer.encode(values), self.serializer.storage_type)
        except IncompatibleValueError as error:
            raise self._refused(error) from None

    def round_trip(self, value: Any) -> Any:
        """Return what a value is once it is stored, which shares nothing with it that can change.

        Raises:
            InvalidRequestError: It can't be stored; also for None.
        """
        try:
            return self.serializer.canonical(value)
        except IncompatibleValueError as error:
            raise self._refused(error) from None

    def encoded_or_null(self, values: Elements) -> pa.Array:
        """Values as an Arrow array, null where there is none. Raises `InvalidRequestError`."""
        if isinstance(values, pa.ChunkedArray):
            values = joined(values.chunks, values.type)
        if isinstance(values, pa.Array):
            if not values.null_count:
                return self.encoded(values)
            present = values.is_valid().to_numpy(zero_copy_only=False)
            return self._spread(self.encoded(take_arrow(values, np.flatnonzero(present))), present)
        if type(values) is list:
            chunks = self.serializer.encode_with_nulls(values)
            if chunks is not None:
                return joined(chunks, self.type)
        if isinstance(values, list | tuple) and type(None) in set(map(type, values)):
            present = np.fromiter((value is not None for value in values), np.bool_, len(values))
            dense = [value for value in values if value is not None]
            return self._spread(self.encoded(dense), present)
        return self.encoded(values)

    def decoded(self, values: pa.Array) -> list[Any]:
        """Values as Python objects, none of which is null.

        Raises:
            InvalidRequestError: Python has no object for a value.
        """
        try:
            return self.serializer.decode(pa.chunked_array([values], values.type))
        except InvalidRequestError as error:
            message = f"{self._what} of state {self.name!r}: {error.args[0]}"
            raise InvalidRequestError(message) from None

    def objects(self, values: pa.Array, present: Flags) -> list[Any]:
        """Values as Python objects; None where they are not present."""
        if present.all():
            return self.decoded(values)
        objects: list[Any] = [None] * len(present)
        dense = self.decoded(take_arrow(values, np.flatnonzero(present)))
        for index, value in zip(np.flatnonzero(present).tolist(), dense, strict=True):
            objects[index] = value
        return objects

    def migrated(self, stored: TableSpec, columns: Sequence[pa.Array]) -> tuple[pa.Array, ...]:
        """Columns of values that were stored in another form.

        Raises:
            StateMigrationError: The values can't become what they are now.
        """
        if stored.is_struct:
            field = pa.field(
                "value", pa.struct(list(stored.values)), metadata=stored.values.metadata
            )
            values = pa.StructArray.from_arrays(columns, fields=list(stored.values))
        else:
            field, values = stored.values.field(0), columns[0]
        chunked = pa.chunked_array([values], field.type)
        now = migrated_column(self.name, field, chunked, self.serializer)
        return self.columns_of(joined(now.chunks, self.type))

    def _refused(self, error: IncompatibleValueError) -> InvalidRequestError:
        message = (
            f"{self._what} don't fit state {self.name!r} of type {self.serializer.name}: {error}"
        )
        return InvalidRequestError(message)

    @staticmethod
    def _spread(values: pa.Array, present: Flags) -> pa.Array:
        rows = np.where(present, np.cumsum(present) - 1, -1)
        return take_or_null(from_arrow(values), rows, values.type)


def joined(chunks: Sequence[pa.Array], type: pa.DataType) -> pa.Array:
    """The chunks as a single array. Raises what `concatenate_arrays` does."""
    if len(chunks) == 1:
        return chunks[0]
    return concatenate_arrays(chunks) if chunks else pa.array([], type)
