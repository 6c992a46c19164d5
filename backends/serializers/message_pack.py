"""Elements that are msgspec structs, dataclasses, or anything else that msgspec knows."""

import builtins
from collections.abc import Callable
from decimal import Decimal
from typing import Any, is_typeddict

import msgspec
import pyarrow as pa

from holdfast.backends.arrow import MisfitError
from holdfast.backends.serializers.bytes_serializer import BytesSerializer
from holdfast.backends.serializers.compatibility import AS_IS, Compatibility, Outcome
from holdfast.backends.serializers.json_schema import misfit
from holdfast.backends.serializers.message_pack_schema import schema_of
from holdfast.backends.serializers.stored_form import StoredSerializer
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError

_encode = msgspec.msgpack.Encoder().encode
_encode_sorted = msgspec.msgpack.Encoder(order="deterministic").encode
_plain = msgspec.msgpack.Decoder().decode


class MessagePackSerializer(BytesSerializer):
    """Stores each element as MessagePack.

    Args:
        type: What msgspec takes for a type: a Struct, a dataclass, `dict[str, int]`, ….

    Raises:
        InvalidRequestError: msgspec takes no such type.
    """

    def __init__(self, type: Any) -> None:
        self._type = type
        # Any is a class since Python 3.11, and a TypedDict is one that nothing is an instance of.
        is_class = isinstance(type, builtins.type) and type is not Any and not is_typeddict(type)
        self._class = type if is_class else None
        if type is None:
            raise InvalidRequestError("None is no type of elements")
        try:
            self._decoder = msgspec.msgpack.Decoder(type)
            self._list_decoder = msgspec.msgpack.Decoder(list[type])
            schema = schema_of(type)
        except (TypeError, ValueError, LookupError, NameError, RecursionError) as error:
            message = (
                f"{_name_of(type)} is no type of elements ({error}); use an Arrow type, a msgspec "
                "struct or a dataclass, or Pickled(...)"
            )
            raise InvalidRequestError(message) from error
        self._schema = schema

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._type,)  # msgspec's decoders don't pickle

    @property
    def type(self) -> Any:
        """The elements' type, as msgspec takes it."""
        return self._type

    @property
    def stored(self) -> StoredSerializer:
        schema = msgspec.json.encode(self._schema, order="deterministic")
        return StoredSerializer("messagepack", _name_of(self._type), schema)

    def encode_one(self, value: Any) -> bytes:
        if value is None:
            message = "None is no element"
            raise MisfitError(message)
        if self._class is not None and type(value) is not self._class:
            message = f"{type(value).__name__} is no {_name_of(self._type)}"
            raise MisfitError(message)
        try:
            encoded: bytes = _encode(value)
            decoded = self._decoder.decode(encoded)
            # msgspec may write what it can't read: it does not look at fields' types, and
            # leaves out what a field's type has not, such as the fields of a subclass.
            again = _encode(decoded)
            is_kept = again == encoded or _is_same(again, encoded) or _is_like(decoded, value)
        except Exception as error:  # noqa: BLE001  # of any class's own code, such as __post_init__
            message = f"not every value is a {_name_of(self._type)}{_place_of(error)}"
            raise MisfitError(message) from None
        if not is_kept:
            message = (
                f"a value would come back as another one, because {_name_of(self._type)} has no "
                "room for fields of a subclass, for other keys, types or numbers that are inside "
                "of it; let the type say what is there"
            )
            raise MisfitError(message)
        return encoded

    def decode_one(self, encoded: Any) -> Any:
        return self._read(self._decoder.decode, encoded)

    def decode(self, column: pa.ChunkedArray) -> list[Any]:
        return [element for chunk in column.chunks for element in self._decoded(chunk)]

    def _read(self, decode: Callable[[bytes], Any], encoded: bytes) -> Any:
        try:
            return decode(encoded)
        except RecursionError:
            message = (
                f"elements of {_name_of(self._type)} are nested too deeply to be read here; use "
                "flatter ones, or read them with fewer calls on the stack, on Python 3.11 also with "
                "a higher sys.setrecursionlimit, else with a Python that allows as much depth as "
                "the one that wrote them"
            )
            raise InvalidRequestError(message) from None
        except Exception as error:  # noqa: BLE001  # of any class's own code; its text may hold data
            message = f"elements can't be read as {_name_of(self._type)}{_place_of(error)}"
            raise CheckpointCorruptedError(message) from None

    def _decoded(self, chunk: pa.Array) -> list[Any]:
        elements: list[Any] = self._read(
            lambda stored: self._list_decoder.decode(packed(stored)), chunk
        )
        return elements

    def compatibility(
        self,
        stored: StoredSerializer,
        storage_type: pa.DataType,  # noqa: ARG002  # it is bytes
    ) -> Compatibility:
        if stored.kind != "messagepack":
            return Compatibility.incompatible(f"it was stored by {stored.kind}")
        if stored.schema == self.stored.schema:
            return AS_IS
        try:
            schema = msgspec.json.decode(stored.schema)
        except msgspec.MsgspecError as error:
            message = f"elements don't say what they are ({error})"
            raise CheckpointCorruptedError(message) from error
        reason = misfit(schema, schema_of(self._type, with_defaults=True))
        if reason:
            return Compatibility.incompatible(reason)
        return Compatibility(Outcome.AFTER_MIGRATION, migrate=self._rewritten)

    def _rewritten(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """The column as this type would write it: else a value that lacks a new field would look as if it had it."""
        encoded = [_encode(element) for element in self.decode(column)]
        return pa.chunked_array(self.column_of(encoded), self.storage_type)


def packed(chunk: pa.Array) -> bytes:
    """All elements as one array of MessagePack: their bytes, one behind the other, are its inside.

    Raises:
        ValueError: The column doesn't hold bytes.
    """
    if chunk.type != pa.large_binary():
        raise ValueError(f"column is {chunk.type}")
    _, offsets, data = chunk.buffers()
    ends = memoryview(offsets).cast("q")[chunk.offset : chunk.offset + len(chunk) + 1]
    inside = memoryview(data)[ends[0] : ends[-1]] if data is not None else b""
    return b"".join((b"\xdd", len(chunk).to_bytes(4, "big"), inside))


def _is_same(encoded: bytes, other: bytes) -> bool:
    """Whether two encodings are of the same value, although their bytes differ: as of 1 and 1.0."""
    try:
        return bool(_plain(encoded) == _plain(other))
    except msgspec.MsgspecError:  # keys that are objects
        return False


def _is_like(decoded: Any, value: Any) -> bool:
    """Whether two values are the same, whatever the order of sets, or how NaN and decimals are written."""
    try:
        first, other = _plain(_encode_sorted(decoded)), _plain(_encode_sorted(value))
    except (msgspec.MsgspecError, TypeError):  # keys that are objects, or have no order
        return bool(decoded == value)
    return _are_equal(first, other)


def _are_equal(value: Any, other: Any) -> bool:
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(
            _are_equal(value[key], other[key]) for key in value
        )
    if isinstance(value, list | tuple) and isinstance(other, list | tuple):
        return len(value) == len(other) and all(map(_are_equal, value, other))
    if isinstance(value, str) and isinstance(other, int | float):
        return Decimal(value) == Decimal(str(other))  # a number in the place of a Decimal
    return bool(value == other or (value != value and other != other))  # noqa: PLR0124  # NaN


def _place_of(error: Exception) -> str:
    """Where in an element decoding failed. The rest of the text may hold data."""
    _, at, place = str(error).rpartition(" - at ")
    return f" (at {place})" if at and isinstance(error, msgspec.MsgspecError) else ""


def _name_of(described: Any) -> str:
    return (
        f"{described.__module__}.{described.__qualname__}"
        if isinstance(described, type)
        else str(described)
    )
