"""Serializers: how elements of a state become Arrow columns, and how those are read later."""

from holdfast.backends._serializers._compatibility import Compatibility, Outcome
from holdfast.backends._serializers._message_pack import MessagePackSerializer, packed
from holdfast.backends._serializers._of import ElementType, serializer_of
from holdfast.backends._serializers._pickled import Pickled, PickleSerializer
from holdfast.backends._serializers._serializer import Serializer
from holdfast.backends._serializers._stored import Kind, StoredSerializer, column, stored_in

__all__ = [
    "Compatibility",
    "ElementType",
    "Kind",
    "MessagePackSerializer",
    "Outcome",
    "PickleSerializer",
    "Pickled",
    "Serializer",
    "StoredSerializer",
    "column",
    "packed",
    "serializer_of",
    "stored_in",
]
