"""The choice of a serializer for a type."""

import builtins
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from holdfast.backends.arrow import (
    PYTHON_TYPES,
    IncompatibleValueError,
    fields_of,
    path_below,
    paths_in,
    scalar_of,
    types_in,
)
from holdfast.backends.serializers.arrow_migration import Default, Rules
from holdfast.backends.serializers.arrow_serializer import ArrowSerializer
from holdfast.backends.serializers.object_serializers import (
    ObjectSerializer,
    Pickled,
    PickleSerializer,
    serializer_of_objects,
)
from holdfast.backends.serializers.serializer import Serializer
from holdfast.errors import InvalidRequestError

ElementType: TypeAlias = Any
"""An Arrow type; an Arrow schema, for rows; `str`, `bytes`, `int` (64 bits), `float` or `bool`, which have Arrow types;
a msgspec Struct, a dataclass or another type that msgspec knows; or `Pickled`."""

_NATIVE: dict[builtins.type, pa.DataType] = {
    kind: PYTHON_TYPES[kind] for kind in (str, bytes, int, float, bool)
}

_INDEX_BITS = 32


def serializer_of(
    type: ElementType,
    defaults: Mapping[str, Any] | None = None,
    *,
    renamed: Mapping[str, str] | None = None,
    dropped: Collection[str] | None = (),
) -> Serializer:
    """Return the serializer of a type.

    `defaults` are those of fields of an Arrow struct, by name; `renamed` and `dropped` are as in `Rules`. Raises
    `InvalidRequestError` if elements can't have the type, a default doesn't fit its field, or the type contradicts
    `renamed` or `dropped`.
    """
    defaults, renamed = defaults or {}, renamed or {}
    if isinstance(type, Serializer):
        return type
    if isinstance(type, pa.Schema):
        type = pa.struct(list(type))
    if isinstance(type, builtins.type):
        type = _NATIVE.get(type, type)
    if not isinstance(type, pa.DataType):
        if defaults:
            raise InvalidRequestError("only Arrow structs take defaults; set them in the class")
        if not isinstance(type, Pickled):
            serializer = serializer_of_objects(type, renamed, dropped)
            if isinstance(serializer, ObjectSerializer):
                _check_names(serializer.storage_type, renamed, dropped or ())
            return serializer
        if renamed or dropped:
            raise InvalidRequestError(
                "pickled elements have no fields that could be renamed or dropped"
            )
        return PickleSerializer(type)
    _check_storable(type)
    _check_names(type, renamed, dropped or ())
    return ArrowSerializer(type, Rules(_defaults(defaults, type), renamed, dropped))


def _check_names(type: pa.DataType, renamed: Mapping[str, str], dropped: Collection[str]) -> None:
    """Refuse changes that contradict the type. A change may be declared again after it was made, so no name is both old and new."""
    if isinstance(dropped, str):
        raise InvalidRequestError(f"dropped must be a list of names, got {dropped!r}")
    paths = set(_paths(type, ""))
    stored = [path_below(path.rpartition(".")[0], before) for path, before in renamed.items()]
    if len(set(stored)) < len(stored):
        raise InvalidRequestError(
            f"renamed is {renamed!r}; two fields can't have had the same name"
        )
    for (path, before), sibling in zip(renamed.items(), stored, strict=True):
        if path not in paths:
            raise InvalidRequestError(f"renamed has {path!r}, which is not a field of {type}")
        if sibling in paths:
            raise InvalidRequestError(
                f"renamed has {before!r} as the old name of {path!r}, but {sibling!r} is a field of {type}; give the "
                "new field another name"
            )
    kept = sorted(paths.intersection(dropped))
    if kept:
        raise InvalidRequestError(f"dropped has {kept}, which are fields of {type}")


def _paths(type: pa.DataType, at: str) -> Iterator[str]:
    """Iterate over the paths of all fields inside a type."""
    for field, path in zip(fields_of(type), paths_in(type, at), strict=True):
        yield path
        yield from _paths(field.type, path)


def _check_storable(type: pa.DataType) -> None:
    """Refuse types with values that Arrow accepts and can't store."""
    for part in types_in(type):
        if pa.types.is_run_end_encoded(part) or pa.types.is_union(part):
            raise InvalidRequestError(
                f"{part} is not a valid type of elements; use the type inside it"
            )
        if pa.types.is_dictionary(part) and part.index_type.bit_width < _INDEX_BITS:
            raise InvalidRequestError(
                f"dictionary index of {part} is too small; use one of 32 bits"
            )


def _defaults(defaults: Mapping[str, Any], struct: pa.DataType) -> dict[str, Default]:
    factories: dict[str, Default] = {}
    for name, value in defaults.items():
        index = struct.get_field_index(name) if pa.types.is_struct(struct) else -1
        if index < 0:
            raise InvalidRequestError(f"{name!r} has a default, but is not a field of {struct}")
        try:
            factories[name] = partial(_repeat, scalar_of(value, struct.field(index).type))
        except IncompatibleValueError as error:
            raise InvalidRequestError(f"default of field {name!r}: {error}") from error
    return factories


def _repeat(scalar: pa.Scalar, rows: int) -> pa.Array:
    # `pa.repeat` itself can't make an empty array of lists.
    return pa.repeat(scalar, 1).take(pa.array(np.zeros(rows, np.int64)))
