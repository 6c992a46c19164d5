"""Objects of one type that msgspec knows: checked, and copied through MessagePack. And the forms of such types.

A form is a string that is equal for types that read and write the same values. Forms are compared, never parsed. They lack
the names of classes and modules, so that a class may move, and defaults, except of classes that are written without
their defaults.
"""

import builtins
import json
from collections.abc import Callable, Collection, Iterator
from decimal import Decimal
from inspect import get_annotations
from typing import Any, get_origin, is_typeddict

import msgspec
import msgspec.inspect
from msgspec import inspect

from holdfast.backends.arrow import IncompatibleValueError
from holdfast.common import message_pack_decoder, raise_shortage
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError

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


_encode = msgspec.msgpack.Encoder().encode
_encode_sorted = msgspec.msgpack.Encoder(order="deterministic").encode
_plain = message_pack_decoder(Any).decode


class Objects:
    """Converts objects of a type that msgspec knows: a Struct, a dataclass, `dict[str, int]`, ….

    Raises `InvalidRequestError` for another type.
    """

    def __init__(self, type: Any) -> None:
        self.type = type
        self.name = (
            f"{type.__module__}.{type.__qualname__}"
            if isinstance(type, builtins.type)
            else str(type)
        )
        # Any is a class since Python 3.11, and a TypedDict is a class without instances.
        is_class = isinstance(type, builtins.type) and type is not Any and not is_typeddict(type)
        self._class = type if is_class else None
        if type is None:
            raise InvalidRequestError("None is not a valid type of elements")
        try:
            self._decode = message_pack_decoder(type).decode
            self._decode_list = message_pack_decoder(list[type]).decode
            self.described = msgspec.inspect.type_info(type)
            self.form = form_of(self.described)
            classes = classes_in(self.described)
        except (TypeError, ValueError, LookupError, NameError, RecursionError) as error:
            raise InvalidRequestError(
                f"{self.name} is not a valid type of elements ({error}); use an Arrow type, a msgspec "
                "struct or a dataclass, or Pickled(...)"
            ) from error
        self._is_untyped = has_untyped(self.described)
        self.fields = sorted({field.encode_name for each in classes for field in each.fields})
        self.leaves_out_defaults = any(map(leaves_out_defaults, classes))

    def encode(self, value: Any) -> bytes:
        """Encode an object as MessagePack. Raises `IncompatibleValueError`, also for None."""
        if value is None or (self._class is not None and type(value) is not self._class):
            raise self._no_object(type(value))
        try:
            encoded: bytes = _encode(value)
            copy = self._decode(encoded)
            # msgspec may write values that it can't read: it ignores the fields' types when it writes, and
            # drops parts that a type lacks, such as the fields of a subclass, when it reads.
            again = _encode(copy)
            is_kept = again == encoded or _is_same(again, encoded) or _is_like(copy, value)
        except Exception as error:  # noqa: BLE001  # of any class's own code, such as __post_init__
            raise self._incompatible(error) from None
        if not is_kept:
            raise self._lossy()
        return encoded

    def copies(self, values: list[Any]) -> list[Any]:
        """Copy many objects. Raises `IncompatibleValueError`, also for None."""
        for other in set(map(type, values)) - {self._class}:
            if self._class is not None or other is type(None):
                raise self._no_object(other)
        try:
            encoded = _encode(values)
            copies: list[Any] = self._decode_list(encoded)
            is_kept = _encode(copies) == encoded or all(map(_is_kept, copies, values))
        except Exception as error:  # noqa: BLE001  # of any class's own code, such as __post_init__
            raise self._incompatible(error) from None
        if not is_kept:
            raise self._lossy()
        return copies

    def check(self, read: Callable[[Any], list[Any]], stored: Any) -> None:
        """Check that a function reads only valid objects from stored data. Raises `IncompatibleValueError`."""
        try:
            objects = read(stored)
        except Exception as error:  # noqa: BLE001  # of any class's own code, such as __post_init__
            raise self._incompatible(error) from None
        self.copies(objects)

    def migrate(
        self, encoded: bytes, fields: Collection[str], dropped: Collection[str] | None
    ) -> list[Any]:
        """Read an array of MessagePack of another type, with these fields, as objects of this one.

        Raises `IncompatibleValueError` if an object is not of this type, or would lose values other than those `dropped`.
        """
        try:
            objects: list[Any] = self._decode_list(encoded)
            # In MessagePack a field is only a name. Fields of this type may be left out as defaults.
            left_out = {path.rpartition(".")[2] for path in dropped or ()} | {*self.fields}
            lost = _lost_part(_plain(encoded), _plain(_encode(objects)), left_out, fields)
        except Exception as error:  # noqa: BLE001  # of any class's own code, such as __post_init__
            raise self._incompatible(error) from None
        if lost in fields and dropped is not None:
            lost = f"field {lost!r}; declare the state with dropped=[{lost!r}] to lose its values"
        if lost:
            raise IncompatibleValueError(f"{self.name} can't hold {lost}")
        return objects

    def of_json(self, text: str) -> Any:
        """Make an object of its JSON text. Raises `IncompatibleValueError`."""
        if self._is_untyped:
            raise IncompatibleValueError(
                f"parts of {self.name} have no type (Any), or are dicts with keys of several types, and the JSON "
                "text that they are read as has no types"
            )
        try:
            return msgspec.convert(json.loads(text), self.type, str_keys=True)
        except Exception as error:  # noqa: BLE001  # of any class's own code, such as __post_init__
            raise self._incompatible(error) from None

    def read(self, encoded: bytes) -> Any:
        """Make an object of its MessagePack. Raises the same as `read_with`."""
        return self.read_with(self._decode, encoded)

    def read_list(self, encoded: bytes) -> list[Any]:
        """Make the objects of an array of MessagePack. Raises the same as `read_with`."""
        objects: list[Any] = self.read_with(self._decode_list, encoded)
        return objects

    def read_with(self, decode: Callable[[Any], Any], stored: Any) -> Any:
        """Apply a function to stored bytes.

        Raises `CheckpointCorruptedError` if they are not of this type; `InvalidRequestError` if they are nested too deeply.
        """
        try:
            return decode(stored)
        except RecursionError:
            raise InvalidRequestError(
                f"elements of {self.name} are nested too deeply to be read here; use "
                "flatter ones, or read them with fewer calls on the stack, on Python 3.11 also with "
                "a higher sys.setrecursionlimit, else with a Python that allows the depth that the "
                "writer's allowed"
            ) from None
        except Exception as error:  # noqa: BLE001  # of any class's own code; its text may hold data
            raise_shortage(error)
            message = f"elements can't be read as {self.name}{place_of(error)}"
            raise CheckpointCorruptedError(message) from None

    def _no_object(self, other: builtins.type) -> IncompatibleValueError:
        if other is type(None):
            return IncompatibleValueError("None is not a valid element")
        return IncompatibleValueError(f"{other.__name__} is not a {self.name}")

    def _incompatible(self, error: Exception) -> IncompatibleValueError:
        raise_shortage(error)
        return IncompatibleValueError(f"not every value is a {self.name}{place_of(error)}")

    def _lossy(self) -> IncompatibleValueError:
        return IncompatibleValueError(
            f"a value would come back changed, because {self.name} can't hold a part of it, such as "
            "fields of a subclass, other keys, types or numbers; declare these parts in the type"
        )


def place_of(error: Exception) -> str:
    """Return the place in an element at which decoding failed. The rest of the message may contain data."""
    _, at, place = str(error).rpartition(" - at ")
    return f" (at {place})" if at and isinstance(error, msgspec.MsgspecError) else ""


def _is_kept(copy: Any, value: Any) -> bool:
    again, encoded = _encode(copy), _encode(value)
    return again == encoded or _is_same(again, encoded) or _is_like(copy, value)


def _is_same(encoded: bytes, other: bytes) -> bool:
    """Return whether two different encodings have the same value, such as those of 1 and 1.0."""
    try:
        return bool(_plain(encoded) == _plain(other))
    except msgspec.MsgspecError:  # keys that are objects
        return False


def _is_like(decoded: Any, value: Any) -> bool:
    """Return whether two values are the same, in any order of sets, and in any form of NaN and decimals."""
    try:
        first, other = _plain(_encode_sorted(decoded)), _plain(_encode_sorted(value))
    except (msgspec.MsgspecError, TypeError):  # keys that are objects, or have no order
        return bool(decoded == value)
    return _is_equal(first, other)


def _lost_part(before: Any, now: Any, left_out: Collection[str], fields: Collection[str]) -> str:
    """Return the part of one value that another value lacks; empty if it has all.

    It may lack the fields that are `left_out`. Only names in `fields` may be returned: other keys are data.
    """
    if isinstance(before, dict) and isinstance(now, dict):
        for key, value in before.items():
            if key not in now and key not in left_out:
                return str(key) if key in fields else "a key of a dict"
            lost = _lost_part(value, now[key], left_out, fields) if key in now else ""
            if lost:
                return lost
        return ""
    if isinstance(before, list | tuple) and isinstance(now, list | tuple):
        if len(now) < len(before):
            return "an item"
        pairs = zip(before, now, strict=False)
        return next(
            filter(None, (_lost_part(value, other, left_out, fields) for value, other in pairs)), ""
        )
    return "" if _is_equal(before, now) or _is_equal(now, before) else "a value"


def _is_equal(value: Any, other: Any) -> bool:
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(
            _is_equal(value[key], other[key]) for key in value
        )
    if isinstance(value, list | tuple) and isinstance(other, list | tuple):
        return len(value) == len(other) and all(map(_is_equal, value, other))
    if isinstance(value, str) and isinstance(other, int | float):
        return Decimal(value) == Decimal(str(other))  # a number in place of a Decimal
    return bool(value == other or (value != value and other != other))  # noqa: PLR0124  # NaN
