"""Objects written by Java's serialization, read as plain data: no class is loaded or instantiated.

    stream   u2 0xaced, u2 5, content
    content  byte for its type, then an object, class, string, array, enum, null, or reference to an earlier one

The stream describes the fields of every class, so the end of every object is known. The library `javaobj-py3` does not
return that end, and does not read objects of classes that write their own blocks.

Source:
    Java Object Serialization Specification, chapter 6, Object Serialization Stream Protocol.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast.flink.binary import DataInput, corrupted_error, modified_utf8

_Value = TypeVar("_Value")

_MAX_DEPTH = 100
_START = 0xACED0005
_NULL, _END_OF_BLOCKS = 0x70, 0x78
_FIRST_HANDLE = 0x7E0000
_HAS_METHOD, _IS_SERIALIZABLE, _IS_EXTERNAL, _HAS_BLOCKS = 1, 2, 4, 8


@dataclass(slots=True)
class JavaObject:
    """An object, an enum or an array.

    Attributes:
        java_class: The name of its class.
        fields: By name; fields of a class override those of its parents.
        items: Data that the class has written in addition to its fields, elements of an array, or the name of an
            enum's value.
    """

    java_class: str
    fields: dict[str, Any] = field(default_factory=dict)
    items: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class _Class:
    name: str
    flags: int = 0
    fields: list[tuple[str, str]] = field(default_factory=list)
    parent: "_Class | None" = None


def read_java_object(source: DataInput) -> Any:
    """Read a stream of one object: a `JavaObject`, a string, or None.

    Raises:
        CheckpointCorruptedError: It is corrupted, or in a format that only its class can read.
    """
    source.expect(_START, "a Java object")
    return _Stream(source).content(0)


class _Stream:
    """A reader of an object with everything in it, and the values that it may refer to again."""

    def __init__(self, source: DataInput) -> None:
        self._source = source
        self._handles: list[Any] = []
        self._readers: dict[int, Callable[[int], Any]] = {
            0x71: lambda _depth: self._earlier(),
            0x72: self._new_class,
            0x73: self._object,
            0x74: lambda _depth: self._register(source.utf()),
            0x75: self._array,
            0x76: lambda depth: self._register(self._class(depth)),
            0x77: lambda _depth: source.take(source.byte()),
            0x7A: lambda _depth: source.take(source.count()),
            0x7C: lambda _depth: self._register(modified_utf8(source.take(source.read_long()))),
            0x7D: self._new_proxy,
            0x7E: self._enum,
        }

    def content(self, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise corrupted_error("Java objects are nested too deeply")
        kind = self._source.byte()
        if kind == _NULL:
            return None
        if kind not in self._readers:
            raise corrupted_error(f"a Java object has a part of unknown type {kind}")
        return self._readers[kind](depth)

    def _register(self, value: _Value) -> _Value:
        """Register a value that the stream may refer to from now on, and return it."""
        self._handles.append(value)
        return value

    def _earlier(self) -> Any:
        number = self._source.read_int() - _FIRST_HANDLE
        if not 0 <= number < len(self._handles):
            raise corrupted_error("a Java object refers to a missing one")
        return self._handles[number]

    def _optional_class(self, depth: int) -> _Class | None:
        described = self.content(depth + 1)
        if described is not None and not isinstance(described, _Class):
            raise corrupted_error("a Java object has a class that is not a class")
        return described

    def _class(self, depth: int) -> _Class:
        described = self._optional_class(depth)
        if described is None:
            raise corrupted_error("a Java object has no class")
        return described

    def _new_class(self, depth: int) -> _Class:
        source = self._source
        name = source.utf()
        source.read_long()
        described = self._register(_Class(name))
        described.flags = source.byte()
        for _ in range(source.short_count()):
            code, field_name = chr(source.byte()), source.utf()
            if code in "[L":
                self.content(depth + 1)  # its type name
            described.fields.append((code, field_name))
        return self._with_parent(described, depth)

    def _new_proxy(self, depth: int) -> _Class:
        described = self._register(_Class("", _IS_SERIALIZABLE))
        for _ in range(self._source.count(2)):
            self._source.utf()
        return self._with_parent(described, depth)

    def _with_parent(self, described: _Class, depth: int) -> _Class:
        self._annotations(depth)
        described.parent = self._optional_class(depth)
        return described

    def _object(self, depth: int) -> JavaObject:
        described = self._class(depth)
        value = self._register(JavaObject(described.name))
        family = [described]
        while (parent := family[-1].parent) is not None and len(family) <= _MAX_DEPTH:
            family.append(parent)
        for each in reversed(family):
            if each.flags & _IS_EXTERNAL:
                if not each.flags & _HAS_BLOCKS:
                    raise corrupted_error(f"only {each.name} can read its own format")
            else:
                value.fields |= {name: self._field(code, depth) for code, name in each.fields}
            if each.flags & (_IS_EXTERNAL | _HAS_METHOD):
                value.items += self._annotations(depth)
        return value

    def _enum(self, depth: int) -> JavaObject:
        constant = self._register(JavaObject(self._class(depth).name))
        constant.items.append(self.content(depth + 1))
        return constant

    def _array(self, depth: int) -> JavaObject:
        described = self._class(depth)
        code = described.name[1:2]
        value = self._register(JavaObject(described.name))
        value.items += [self._field(code, depth) for _ in range(self._source.count())]
        return value

    def _field(self, code: str, depth: int) -> Any:
        if code in {"L", "["}:
            return self.content(depth + 1)
        if code not in _NUMBERS:
            raise corrupted_error(f"a Java field has the unknown type {code!r}")
        return _NUMBERS[code](self._source)

    def _annotations(self, depth: int) -> list[Any]:
        """Read values up to the end marker."""
        items = []
        source = self._source
        while source.byte() != _END_OF_BLOCKS:
            source.position -= 1
            items.append(self.content(depth + 1))
        return items


_NUMBERS: dict[str, Callable[[DataInput], Any]] = {
    "B": DataInput.byte,
    "C": DataInput.read_short,
    "D": DataInput.read_long,
    "F": DataInput.read_int,
    "I": DataInput.read_int,
    "J": DataInput.read_long,
    "S": DataInput.read_short,
    "Z": lambda source: source.byte() != 0,
}
"""Readers of fields by type; values of floats and doubles are not used."""
