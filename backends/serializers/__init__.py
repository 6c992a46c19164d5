"""Serializers: they write the elements of a state as Arrow columns, and read the columns later.

`serializer` is their interface, with the description that is stored and whether a changed type can read it.
`serializer_choice` picks the serializer of a type, `arrow_migration` changes columns from one type to another.

    Arrow types                            arrow_serializer
    classes and collections of msgspec     object_serializers, with columns that `column_choice` picks
    types that Arrow has no column for     the same, with MessagePack, or pickle if the user names it

Start with `serializer`.
"""

from holdfast.backends.serializers.arrow_migration import (
    ANY_FIELD,
    IncompatibleTypeError,
    Rules,
    change_of,
)
from holdfast.backends.serializers.arrow_serializer import ArrowSerializer
from holdfast.backends.serializers.object_serializers import Pickled, json_text, pack_elements
from holdfast.backends.serializers.serializer import (
    Kind,
    Serializer,
    StoredSerializer,
    migrated_column,
    stored_serializer,
)
from holdfast.backends.serializers.serializer_choice import ElementType, serializer_of

__all__ = [
    "ANY_FIELD",
    "ArrowSerializer",
    "ElementType",
    "IncompatibleTypeError",
    "Kind",
    "Pickled",
    "Rules",
    "Serializer",
    "StoredSerializer",
    "change_of",
    "json_text",
    "migrated_column",
    "pack_elements",
    "serializer_of",
    "stored_serializer",
]
