"""Descriptors of list states and map states: the name of a state and the type of its elements."""

from collections.abc import Collection, Mapping
from typing import Any

from holdfast.backends.descriptors.ttl import StateTtlConfig
from holdfast.backends.serializers import ElementType, Serializer, serializer_of
from holdfast.errors import InvalidRequestError


class ListStateDescriptor:
    """Names a list state and gives the type of its elements.

    Args:
        name: Unique among the operator's states.
        type: Arrow type of one element; a schema stands for a struct with its fields, that is
            for elements that are rows. Or a Python type: `str`, `bytes`, `int`, `float`, `bool`, a
            msgspec Struct, a dataclass. Or `Pickled`.
        defaults: For structs of Arrow that have got more fields since they were stored: what a
            field is then, by its name.
        renamed: Names under which fields are stored, by their present paths: `{"latest": "last"}`, or
            `{"lines[].price": "cost"}` inside of a list. Without effect once it is done.
        dropped: Paths of stored fields whose values are to be lost. Likewise.
        ttl: How long elements live; None for ever. For keyed state alone.

    Raises:
        InvalidRequestError: The name is no string that can be stored, or the type is none of these.
    """

    __slots__ = ("name", "serializer", "ttl", "type")

    def __init__(
        self,
        name: str,
        type: ElementType,
        *,
        defaults: Mapping[str, Any] | None = None,
        renamed: Mapping[str, str] | None = None,
        dropped: Collection[str] = (),
        ttl: StateTtlConfig | None = None,
    ) -> None:
        self.name = checked_name(name)
        self.type = type
        self.serializer = named_serializer(name, type, defaults, renamed, dropped)
        self.ttl = ttl

    def __eq__(self, other: object) -> bool:
        """Whether both name one state of one type; defaults and times to live don't count."""
        return (
            isinstance(other, ListStateDescriptor)
            and self.name == other.name
            and self.serializer == other.serializer
        )

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"ListStateDescriptor({self.name!r}, {self.serializer.name})"


class MapStateDescriptor:
    """Names a broadcast state, or a map of each key, and gives the types of its entries.

    Args:
        name: Unique among the operator's states.
        key_type: Type of the keys, as for a list's elements. Its values have to be hashable.
        value_type: Type of the values, as for a list's elements.
        defaults: For values that are structs of Arrow, as for a list's elements.
        renamed: Renamed fields of values, as for a list's elements.
        dropped: Dropped fields of values, as for a list's elements.
        ttl: How long entries live; None for ever. For keyed state alone.

    Raises:
        InvalidRequestError: The name is no string that can be stored, or a type is none that a state can have.
    """

    __slots__ = ("key_serializer", "key_type", "name", "ttl", "value_serializer", "value_type")

    def __init__(
        self,
        name: str,
        key_type: ElementType,
        value_type: ElementType,
        *,
        defaults: Mapping[str, Any] | None = None,
        renamed: Mapping[str, str] | None = None,
        dropped: Collection[str] = (),
        ttl: StateTtlConfig | None = None,
    ) -> None:
        self.name = checked_name(name)
        self.key_type = key_type
        self.value_type = value_type
        self.key_serializer = named_serializer(name, key_type, None, None, None)
        self.value_serializer = named_serializer(name, value_type, defaults, renamed, dropped)
        self.ttl = ttl

    def __eq__(self, other: object) -> bool:
        """Whether both name one state of one type; defaults and times to live don't count."""
        return (
            isinstance(other, MapStateDescriptor)
            and self.name == other.name
            and self.key_serializer == other.key_serializer
            and self.value_serializer == other.value_serializer
        )

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        types = f"{self.key_serializer.name}, {self.value_serializer.name}"
        return f"MapStateDescriptor({self.name!r}, {types})"


def checked_name(name: str) -> str:
    """The name of a state. Raises `InvalidRequestError` if it can't be stored."""
    if not isinstance(name, str):
        raise InvalidRequestError(f"state name {name!r} is not a string")
    try:
        name.encode()
    except UnicodeEncodeError:
        message = f"state name {name!r} has a lone surrogate, which can't be stored"
        raise InvalidRequestError(message) from None
    return name


def named_serializer(
    name: str,
    type: ElementType,
    defaults: Mapping[str, Any] | None,
    renamed: Mapping[str, str] | None,
    dropped: Collection[str] | None,
) -> Serializer:
    """The serializer of a state's type. Raises `InvalidRequestError`, which names the state."""
    try:
        return serializer_of(type, defaults, renamed=renamed, dropped=dropped)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"state {name!r}: {error.args[0]}") from error
