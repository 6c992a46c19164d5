"""Serializers: how elements of a state become Arrow columns, and how those are read later.

`serializer_choice` picks the serializer of a type; `compatibility` says what becomes of stored data when a type changes.
A new kind of element is a module here and a line in `serializer_choice`. Start with `serializer`.
"""

from holdfast.backends.serializers.arrow_migration import ANY_FIELD, NoWayError, change_of
from holdfast.backends.serializers.bytes_serializers import Pickled, json_text, packed
from holdfast.backends.serializers.serializer import (
    Kind,
    Outcome,
    Serializer,
    StoredSerializer,
    migrated_column,
    stored_in,
)
from holdfast.backends.serializers.serializer_choice import ElementType, serializer_of

__all__ = [
    "ANY_FIELD",
    "ElementType",
    "Kind",
    "NoWayError",
    "Outcome",
    "Pickled",
    "Serializer",
    "StoredSerializer",
    "change_of",
    "json_text",
    "migrated_column",
    "packed",
    "serializer_of",
    "stored_in",
]
