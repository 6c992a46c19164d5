"""The choice of a serializer for a type."""

import builtins
from collections.abc import Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from holdfast.backends.arrow import MisfitError, scalar_of, types_in
from holdfast.backends.serializers.arrow_serializer import ArrowSerializer
from holdfast.backends.serializers.object_serializer import serializer_of_objects
from holdfast.backends.serializers.pickled import Pickled, PickleSerializer
from holdfast.backends.serializers.serializer import Serializer
from holdfast.errors import InvalidRequestError

ElementType: TypeAlias = Any
"""An Arrow type; an Arrow schema, for rows; `str`, `bytes`, `int` (64 bits), `float` or `bool`, which
are stored as Arrow's; a msgspec Struct, a dataclass or another type that msgspec knows; or `Pickled`."""

_NATIVE = {
    str: pa.string(),
    bytes: pa.binary(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
}

_INDEX_BITS = 32


def serializer_of(type: ElementType, defaults: Mapping[str, Any]) -> Serializer:
    """The serializer of a type.

    Args:
        type: The elements' type.
        defaults: Values for fields of an Arrow struct in elements that were stored without them.

    Raises:
        InvalidRequestError: The type is none that elements can have, or a default doesn't fit its
            field.
    """
    if isinstance(type, pa.Schema):
        type = pa.struct(list(type))
    elif isinstance(type, Pickled):
        return _without(defaults, PickleSerializer(type))
    elif not isinstance(type, pa.DataType):
        native = _NATIVE.get(type) if isinstance(type, builtins.type) else None
        if native is None:
            return _without(defaults, serializer_of_objects(type))
        type = native
    _check_storable(type)
    return ArrowSerializer(type, _scalars(defaults, type))


def _check_storable(type: pa.DataType) -> None:
    """Refuse types of which not every value that is accepted can be stored."""
    for part in types_in(type):
        if pa.types.is_run_end_encoded(part) or pa.types.is_union(part):
            raise InvalidRequestError(
                f"{part} is no type of elements; take the type that is inside of it"
            )
        if pa.types.is_dictionary(part) and part.index_type.bit_width < _INDEX_BITS:
            message = f"{part} has room for few values only; take an index of 32 bits"
            raise InvalidRequestError(message)


def _without(defaults: Mapping[str, Any], serializer: Serializer) -> Serializer:
    if defaults:
        message = "defaults are for Arrow's structs; let the class have them"
        raise InvalidRequestError(message)
    return serializer


def _scalars(defaults: Mapping[str, Any], struct: pa.DataType) -> dict[str, pa.Scalar]:
    scalars = {}
    for name, value in defaults.items():
        index = struct.get_field_index(name) if pa.types.is_struct(struct) else -1
        if index < 0:
            raise InvalidRequestError(f"{name!r} has a default, but is no field of {struct}")
        try:
            scalars[name] = scalar_of(value, struct.field(index).type)
        except MisfitError as error:
            raise InvalidRequestError(f"default of field {name!r}: {error}") from error
    return scalars
