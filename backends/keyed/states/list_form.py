"""How lists lie in a column: as lists, or as lists of elements with their times where elements have a time to live."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.arrow import offsets_of
from holdfast.backends.keyed.columns import take_arrow
from holdfast.backends.keyed.states.value_form import ValueForm, joined
from holdfast.backends.keyed.table import Flags, TableSpec
from holdfast.backends.serializers import Serializer, migrated_column

_TIME = pa.field("ts", pa.int64(), nullable=False)


class ListForm(ValueForm):
    """Lists of elements of a type.

    Args:
        name: The state's name, for errors.
        serializer: Makes columns of elements.
        has_times: Whether each element has the time at which it was added, in milliseconds.
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
        """Lists of elements that follow each other, as they lie in the column.

        Args:
            offsets: Where each list begins, and where the last one ends.
            elements: The elements of all lists.
            now_ms: The time of all elements.
        """
        if self.has_times:
            times = pa.array(np.full(len(elements), now_ms, np.int64))
            elements = pa.StructArray.from_arrays(
                [times, elements], fields=[_TIME, pa.field("element", self.element_type)]
            )
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements, type=self.type)

    def migrated(self, stored: TableSpec, columns: Sequence[pa.Array]) -> tuple[pa.Array, ...]:
        field, (lists,) = stored.values.field(0), columns
        offsets, elements = offsets_of(lists), lists.flatten()
        times = None
        if stored.ttl_ms is not None:
            times, elements = elements.field(0), elements.field(1)
        before = pa.field("element", elements.type, metadata=field.metadata)
        chunked = pa.chunked_array([elements], elements.type)
        now = migrated_column(self.name, before, chunked, self.serializer)
        elements = joined(now.chunks, self.element_type)
        if self.has_times:
            elements = pa.StructArray.from_arrays(
                [times, elements], fields=[_TIME, pa.field("element", self.element_type)]
            )
        mask = lists.is_null() if lists.null_count else None
        return (
            pa.ListArray.from_arrays(
                pa.array(offsets, pa.int32()), elements, type=self.type, mask=mask
            ),
        )


def plain_lists(
    lists: pa.Array, element_type: pa.DataType, *, living_after_ms: int | None
) -> pa.Array:
    """Lists without the times of their elements.

    Args:
        lists: The lists as the column stores them, with times.
        element_type: Type of the elements.
        living_after_ms: Elements of this time or before are left out, and lists of none are null; None
            for no element.
    """
    offsets, structs = offsets_of(lists), lists.flatten()
    elements = structs.field(1)
    if living_after_ms is not None:
        living = structs.field(0).to_numpy() > living_after_ms
        if not living.all():
            elements = take_arrow(elements, np.flatnonzero(living))
            offsets = np.concatenate([[0], np.cumsum(living, dtype=np.int64)])[offsets]
    return lists_or_null(offsets, elements, pa.list_(element_type))


def lists_or_null(
    offsets: npt.NDArray[np.int64], elements: pa.Array, type: pa.DataType
) -> pa.Array:
    """Lists of elements that follow each other; null for those of none."""
    empty: Flags = offsets[1:] == offsets[:-1]
    mask = pa.array(empty) if empty.any() else None
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements, type=type, mask=mask)
