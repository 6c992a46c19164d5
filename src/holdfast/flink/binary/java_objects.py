"""Objects as Java's serialization has written them, read as data: no class is loaded, nothing is made of them.

    stream   u2 0xaced, u2 5, content
    content  byte of what it is, and that: an object, a class, a text, an array, an enum, null, or what was there before

Every class that is met is described with its fields, and so every object has an end that can be known.

Source:
    Java Object Serialization Specification, chapter 6, Object Serialization Stream Protocol.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast.flink.binary.data_input import DataInput, damaged, modified_utf8

_Value = TypeVar("_Value")

_MOST_NESTED = 100
_START = 0xACED0005
_NULL, _REFERENCE, _CLASS, _END_OF_BLOCKS, _PROXY = 0x70, 0x71, 0x72, 0x78, 0x7D
_FIRST_HANDLE = 0x7E0000
_HAS_METHOD, _IS_SERIALIZABLE, _IS_EXTERNAL, _HAS_BLOCKS = 1, 2, 4, 8


@dataclass(slots=True)
class JavaObject:
    """An object, an enum or an array.

    Attributes:
        java_class: The name of its class.
        fields: By name; those of a class win over those of its parents.
        items: What the class has written beside its fields, an array's elements, or the name of an enum's value.
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
    """Read a stream of one object: a `JavaObject`, a text, or None.

    Raises:
        CheckpointCorruptedError: It is damaged, or written in a way that only its class can read.
    """
    source.expect(_START, "an object of Java")
    return _Stream(source).content(0)


class _Stream:
    """An object and all that is in it, with what may be referred to again."""

    def __init__(self, source: DataInput) -> None:
        self._source = source
        self._handles: list[Any] = []
        self._readers: dict[int, Callable[[int], Any]] = {
            _REFERENCE: lambda _depth: self._before(),
            _CLASS: self._new_class,
            _PROXY: self._new_proxy,
            0x73: self._object,
            0x74: lambda _depth: self._kept(source.utf()),
            0x75: self._array,
            0x76: lambda depth: self._kept(self._needed_class(depth)),
            0x77: lambda _depth: source.take(source.byte()),
            0x7A: lambda _depth: source.take(source.count()),
            0x7C: lambda _depth: self._kept(modified_utf8(source.take(source.read_long()))),
            0x7E: self._enum,
        }

    def content(self, depth: int) -> Any:
        """Read what stands here."""
        if depth > _MOST_NESTED:
            raise damaged("objects of Java stand in each other without end")
        kind = self._source.byte()
        if kind == _NULL:
            return None
        if kind not in self._readers:
            raise damaged(f"an object of Java has a part of kind {kind}")
        return self._readers[kind](depth)

    def _kept(self, value: _Value) -> _Value:
        """The value, to which the stream may refer from now on."""
        self._handles.append(value)
        return value

    def _before(self) -> Any:
        number = self._source.read_int() - _FIRST_HANDLE
        if not 0 <= number < len(self._handles):
            raise damaged("an object of Java refers to another that is not there")
        return self._handles[number]

    def _class(self, depth: int) -> _Class | None:
        """Read the description of a class."""
        known = self.content(depth + 1)
        if known is not None and not isinstance(known, _Class):
            raise damaged("an object of Java has another object as its class")
        return known

    def _new_class(self, depth: int) -> _Class:
        source = self._source
        name = source.utf()
        source.read_long()
        described = self._kept(_Class(name))
        described.flags = source.byte()
        for _ in range(source.short_count()):
            code, field_name = chr(source.byte()), source.utf()
            if code in "[L":
                self.content(depth + 1)  # the name of its type
            described.fields.append((code, field_name))
        return self._with_parent(described, depth)

    def _new_proxy(self, depth: int) -> _Class:
        described = self._kept(_Class("", _IS_SERIALIZABLE))
        for _ in range(self._source.count(2)):
            self._source.utf()
        return self._with_parent(described, depth)

    def _with_parent(self, described: _Class, depth: int) -> _Class:
        self._annotations(depth)
        described.parent = self._class(depth)
        return described

    def _needed_class(self, depth: int) -> _Class:
        described = self._class(depth)
        if described is None:
            raise damaged("an object of Java has no class")
        return described

    def _object(self, depth: int) -> JavaObject:
        described = self._needed_class(depth)
        value = self._kept(JavaObject(described.name))
        family = [described]
        while (parent := family[-1].parent) is not None and len(family) <= _MOST_NESTED:
            family.append(parent)
        for each in reversed(family):
            if each.flags & _IS_EXTERNAL:
                if not each.flags & _HAS_BLOCKS:
                    raise damaged(f"only {each.name} can read what it has written")
                value.items += self._annotations(depth)
                continue
            for code, name in each.fields:
                value.fields[name] = self._field(code, depth)
            if each.flags & _HAS_METHOD:
                value.items += self._annotations(depth)
        return value

    def _enum(self, depth: int) -> JavaObject:
        constant = self._kept(JavaObject(self._needed_class(depth).name))
        constant.items.append(self.content(depth + 1))
        return constant

    def _array(self, depth: int) -> JavaObject:
        described = self._needed_class(depth)
        code = described.name[1:2]
        value = self._kept(JavaObject(described.name))
        value.items += [self._field(code, depth) for _ in range(self._source.count())]
        return value

    def _field(self, code: str, depth: int) -> Any:
        if code in {"L", "["}:
            return self.content(depth + 1)
        if code not in _NUMBERS:
            raise damaged(f"a field of Java is of type {code!r}")
        return _NUMBERS[code](self._source)

    def _annotations(self, depth: int) -> list[Any]:
        """Read what stands here until it is said to be all."""
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
"""What reads a field by its type; nobody asks for what stands in those with a fraction."""
