"""Serializers: how elements of a state become Arrow columns, and how those are read later.

`serializer_choice` picks the serializer of a type; `compatibility` says what becomes of stored data when a type changes.
A new kind of element is a module here and a line in `serializer_choice`. Start with `serializer`.
"""

from holdfast.backends.serializers.arrow_migration import ANY_FIELD, NoWayError, Rules, change_of
from holdfast.backends.serializers.arrow_serializer import ArrowSerializer
from holdfast.backends.serializers.column_migration import migrated_column
from holdfast.backends.serializers.compatibility import Outcome
from holdfast.backends.serializers.message_pack import packed
from holdfast.backends.serializers.pickled import Pickled
from holdfast.backends.serializers.serializer import Serializer
from holdfast.backends.serializers.serializer_choice import ElementType, serializer_of
from holdfast.backends.serializers.stored_form import Kind, StoredSerializer, stored_in

__all__ = [
    "ANY_FIELD",
    "ArrowSerializer",
    "ElementType",
    "Kind",
    "NoWayError",
    "Outcome",
    "Pickled",
    "Rules",
    "Serializer",
    "StoredSerializer",
    "change_of",
    "migrated_column",
    "packed",
    "serializer_of",
    "stored_in",
]
