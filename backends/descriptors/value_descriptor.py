"""The descriptor of a value state: its name and the type of its values."""

from collections.abc import Collection, Mapping
from typing import Any

from holdfast.backends.arrow import IncompatibleValueError
from holdfast.backends.descriptors.descriptors import checked_name, named_serializer
from holdfast.backends.descriptors.ttl import StateTtlConfig
from holdfast.backends.serializers import ElementType
from holdfast.errors import InvalidRequestError


class ValueStateDescriptor:
    """Names a value of each key and gives its type.

    Args:
        name: Unique among the operator's states.
        type: Type of the value, as for a list's elements.
        default: The value of keys that have none; each reader gets a copy. Without effect where values
            have a time to live.
        defaults: For structs of Arrow that have got more fields since they were stored: what a
            field is then, by its name.
        renamed: Names under which fields are stored, by their present paths: `{"latest": "last"}`, or
            `{"lines[].price": "cost"}` inside of a list. Without effect once it is done.
        dropped: Paths of stored fields whose values are to be lost. Likewise.
        ttl: How long a value lives; None for ever.

    Raises:
        InvalidRequestError: The name is no string that can be stored, or the type is none of these, or
            the default is no value of it.
    """

    __slots__ = ("default", "name", "serializer", "ttl", "type")

    def __init__(
        self,
        name: str,
        type: ElementType,
        *,
        default: Any = None,
        defaults: Mapping[str, Any] | None = None,
        renamed: Mapping[str, str] | None = None,
        dropped: Collection[str] = (),
        ttl: StateTtlConfig | None = None,
    ) -> None:
        self.name = checked_name(name)
        self.type = type
        self.serializer = named_serializer(name, type, defaults, renamed, dropped)
        self.default = default
        self.ttl = ttl
        if default is not None:
            try:
                self.serializer.encode_one(default)
            except IncompatibleValueError as error:
                message = f"state {name!r}: the default is no {self.serializer.name}: {error}"
                raise InvalidRequestError(message) from None

    def __repr__(self) -> str:
        return f"ValueStateDescriptor({self.name!r}, {self.serializer.name})"
