"""Forms of the types that msgspec knows: texts that are equal for types that read and write the same values.

Types are described by `msgspec.inspect.type_info`. Forms are compared, never parsed. They lack the names of classes and modules, so that a class may move, and defaults,
except of classes that are written without their defaults.
"""

from collections.abc import Iterator
from inspect import get_annotations
from typing import Any, get_origin

import msgspec
from msgspec import inspect

from holdfast.errors import InvalidRequestError

CLASSES = (inspect.StructType, inspect.DataclassType, inspect.NamedTupleType, inspect.TypedDictType)
"""The descriptions that msgspec has for classes with fields."""

_LEFT_OUT = {"cls", "fields", "extra_json_schema", "extra"}


def form_of(described: Any, outer: tuple[type, ...] = ()) -> str:
    """Return the form of a type inside of some classes. Raises `TypeError` if msgspec does not know the type."""
    match described:
        case inspect.CustomType(cls=cls):
            raise TypeError(f"type {cls!r} is not supported")
        case inspect.EnumType(cls=cls):
            return f"enum{sorted((member.value for member in cls), key=repr)}"
        case inspect.Field():
            presence = "" if described.required else "?"
            return f"{described.encode_name}{presence}: {form_of(described.type, outer)}"
        case inspect.Type():
            return f"{type(described).__name__}({', '.join(_parts(described, outer))})"
        case tuple():
            return f"[{', '.join(form_of(part, outer) for part in described)}]"
    return repr(described)


def classes_in(described: Any) -> list[Any]:
    """Return the classes in a type. Raises `InvalidRequestError` if a struct was pickled by value, without its fields."""
    return [part for part in _all_parts(described) if isinstance(part, CLASSES)]


def has_untyped(described: Any) -> bool:
    """Return whether JSON text is ambiguous for some parts of a type."""
    untyped = (inspect.AnyType, inspect.RawType, inspect.ExtType)
    return any(
        isinstance(part, untyped)
        or (isinstance(part, inspect.DictType) and isinstance(part.key_type, inspect.UnionType))
        for part in _all_parts(described)
    )


def _all_parts(described: Any) -> Iterator[inspect.Type]:
    """Iterate over all types in a type, each class once."""
    classes = set()
    parts = [described]
    while parts:
        part = parts.pop()
        if isinstance(part, CLASSES):
            if part.cls in classes:
                continue
            _check_fields(part)
            classes.add(part.cls)
        if isinstance(part, inspect.Type):
            yield part
        if isinstance(part, inspect.Type | inspect.Field):
            parts += [getattr(part, name) for name in part.__struct_fields__ if name != "extra"]
        elif isinstance(part, tuple):
            parts += part


def leaves_out_defaults(described: Any) -> bool:
    """Return whether objects of a class are written without fields that have their default."""
    cls = getattr(
        described, "cls", None
    )  # for a generic class: the class that was given parameters
    config = getattr(get_origin(cls) or cls, "__struct_config__", None)
    return config is not None and bool(config.omit_defaults)


def _parts(described: inspect.Type, outer: tuple[type, ...]) -> list[str]:
    parts = [
        f"{name}={form_of(value, outer)}"
        for name in described.__struct_fields__
        if name not in _LEFT_OUT and (value := getattr(described, name)) is not None
    ]
    if isinstance(described, CLASSES):
        if described.cls in outer:  # the type is recursive
            return [*parts, f"{len(outer) - outer.index(described.cls)} up"]
        parts += [form_of(field, (*outer, described.cls)) for field in described.fields]
        if leaves_out_defaults(described):
            parts += [f"{field.encode_name} = {_default(field)}" for field in described.fields]
    return parts


def _default(field: inspect.Field) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        # msgspec leaves out the empty results of these, and no result of another factory.
        is_left_out = field.default_factory in (list, dict, set)
        return field.default_factory.__name__ if is_left_out else ""
    if field.default in (msgspec.NODEFAULT, msgspec.UNSET):
        return ""
    try:
        return repr(msgspec.to_builtins(field.default, order="deterministic"))
    except TypeError:  # keys without an order
        return repr(msgspec.to_builtins(field.default))


def _check_fields(described: Any) -> None:
    """Refuse a struct that was pickled by value: it has lost its fields, and their values would be lost."""
    if not isinstance(described, inspect.StructType):
        return
    cls: Any = get_origin(described.cls) or described.cls
    fields = set(cls.__struct_fields__)
    for base in cls.__mro__:
        for name, hint in get_annotations(base).items():
            if name not in fields and "ClassVar" not in str(hint):
                raise InvalidRequestError(
                    f"struct {cls.__name__} lost its field {name!r} when it was sent to this process, because it "
                    "is defined in the main script; define it in a module that executors can import, or make it "
                    "a dataclass"
                )
