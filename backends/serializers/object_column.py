"""The base of all columns of objects: how objects of a type are stored in an Arrow array and read again."""

import builtins
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from operator import is_
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.backends.arrow import QuickType, offsets_of, paths_in
from holdfast.backends.serializers.arrow_migration import Default


class NoColumnError(Exception):
    """Arrow has no type for objects of a type; the message says of which."""


class UnlikeError(Exception):
    """Objects may be other ones than their column would give back."""


class ObjectColumn(ABC):
    """Objects of one type as an Arrow array, and back.

    Args:
        type: Type of the array.
        kind: Class of the objects.
        parts: Columns of what is inside of the objects, in the order in which they are inside of the array.

    Attributes:
        may_be_none: Whether None is among the objects.
        kinds: Classes of objects that need no more looking at; none if each has to be looked at by msgspec.
        default: Makes an array of what the objects are in a class that was stored without them; None if there is
            no default.
        has_classes: Whether rows are other than the objects.
        row_type: The type that msgspec decodes rows to, which are objects' values without their classes; Arrow stores all of
            them. None if there is more to look at.
        is_plain: Whether all objects of the class come back as they are, and can't be changed.
        quick: Objects that need no row to be checked and copied; None if there are none.
        quick_copy: Copies an object that is quick; None if it can't be changed.
    """

    def __init__(
        self, type: pa.DataType, kind: builtins.type, parts: Sequence["ObjectColumn"] = ()
    ) -> None:
        self.type = type
        self.parts = parts
        self.may_be_none = False
        self.kinds = frozenset([kind])
        self.default: Default | None = None
        self.has_classes: bool = any(part.has_classes for part in parts)
        self.row_type: Any = None
        self.is_plain = False
        self.quick: QuickType | None = None
        self.quick_copy: Callable[[Any], Any] | None = None

    def row(self, value: Any) -> Any:
        """The object with tuples in the place of classes, of which msgspec makes a row. Raises `UnlikeError` for others."""
        return value

    def of_row(self, row: Any) -> Any:
        """An object of its row; a new one, unless it can't change."""
        return row

    @abstractmethod
    def write(self, objects: list[Any], *, checked: bool) -> pa.Array:
        """An array of the objects.

        Args:
            objects: The objects, or rows of them.
            checked: Whether they are known to be of this type in all their parts.

        Raises:
            UnlikeError: An object may be of another type.

        Raises Arrow's errors and `OverflowError`, too.
        """

    @abstractmethod
    def read(self, array: pa.Array) -> list[Any]:
        """The objects of an array; None where it is null. Raises msgspec's errors."""

    def check_kinds(self, objects: list[Any]) -> None:
        """Check the class of objects. Raises `UnlikeError`."""
        kinds = set(map(type, objects))
        if not kinds <= self.kinds and not (
            self.may_be_none and kinds <= {*self.kinds, type(None)}
        ):
            raise UnlikeError

    def by_path(self, path: str = "") -> Iterator[tuple[str, "ObjectColumn"]]:
        """This column and all that are inside of it, each with its path."""
        yield path, self
        for below, part in zip(paths_in(self.type, path), self.parts, strict=True):
            yield from part.by_path(below)

    def field(self, name: str) -> pa.Field:
        """The field of a type that has these objects inside."""
        return pa.field(name, self.type, nullable=self.may_be_none)

    def mask(self, objects: list[Any]) -> pa.Array | None:
        """Which objects are None; None if no object is."""
        if not self.may_be_none or not any(map(is_, objects, repeat(None))):
            return None  # `in` would ask the objects' own classes
        return pa.array([value is None for value in objects], pa.bool_())


def offsets(objects: list[Any]) -> pa.Array:
    """Where the items of each object begin, and where the last ones end."""
    lengths = np.fromiter(map(len, objects), np.int64, len(objects))
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())


def slices(array: pa.Array) -> Iterable[slice | None]:
    """Where the items of each list or map are in all items; None where it is null."""
    ends = offsets_of(array).tolist()
    parts = map(slice, ends, ends[1:])
    if not array.null_count:
        return parts
    return (
        part if is_valid else None
        for part, is_valid in zip(parts, array.is_valid().to_pylist(), strict=True)
    )
