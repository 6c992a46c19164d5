"""Elements that are msgspec structs, dataclasses, or anything else that msgspec knows."""

import builtins
from typing import Any, is_typeddict

import msgspec
import pyarrow as pa

from holdfast.backends._casts import MisfitError
from holdfast.backends._serializers._bytes import BytesSerializer
from holdfast.backends._serializers._compatibility import AS_IS, Compatibility, Outcome
from holdfast.backends._serializers._json_schema import misfit
from holdfast.backends._serializers._message_pack_schema import schema_of
from holdfast.backends._serializers._stored import StoredSerializer
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError


class MessagePackSerializer(BytesSerializer):
    """Stores each element as MessagePack.

    Args:
        type: What msgspec takes for a type: a Struct, a dataclass, `dict[str, int]`, ….

    Raises:
        InvalidRequestError: It takes no such type.
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
        self._encode = msgspec.msgpack.Encoder().encode
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
        # What msgspec writes it need not be able to read: it does not look at fields' types, and a
        # subclass has fields that the type has not.
        if self._class is not None and type(value) is not self._class:
            message = f"{type(value).__name__} is no {_name_of(self._type)}"
            raise MisfitError(message)
        try:
            encoded: bytes = self._encode(value)
            self._decoder.decode(encoded)
        except (
            msgspec.MsgspecError,
            TypeError,
            ValueError,
            OverflowError,
            RecursionError,
        ) as error:
            message = f"not every value is a {_name_of(self._type)}{_place_of(error)}"
            raise MisfitError(message) from None
        return encoded

    def decode_one(self, encoded: Any) -> Any:
        return self._decoder.decode(encoded)

    def decode(self, column: pa.ChunkedArray) -> list[Any]:
        try:
            return [one for chunk in column.chunks for one in self._decoded(chunk)]
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            message = f"elements can't be read as {_name_of(self._type)}{_place_of(error)}"
            raise CheckpointCorruptedError(message) from None

    def _decoded(self, chunk: pa.Array) -> list[Any]:
        found: list[Any] = self._list_decoder.decode(packed(chunk))
        return found

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
        reason = misfit(schema, self._schema)
        if reason:
            return Compatibility.incompatible(reason)
        return Compatibility(Outcome.AFTER_MIGRATION, migrate=self._rewritten)

    def _rewritten(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """As this type would write it: what has no new field must not be taken for one that has."""
        encoded = [self._encode(one) for one in self.decode(column)]
        return pa.chunked_array(self.column_of(encoded), self.storage_type)


def packed(chunk: pa.Array) -> bytes:
    """All elements as one array of MessagePack: their bytes, one behind the other, are its inside.

    Raises:
        ValueError: It is no column of bytes.
    """
    if chunk.type != pa.large_binary():
        raise ValueError(f"column is {chunk.type}")
    _, offsets, data = chunk.buffers()
    ends = memoryview(offsets).cast("q")[chunk.offset : chunk.offset + len(chunk) + 1]
    inside = memoryview(data)[ends[0] : ends[-1]] if data is not None else b""
    return b"".join((b"\xdd", len(chunk).to_bytes(4, "big"), inside))


def _place_of(error: Exception) -> str:
    """Where in an element it failed. The rest of the text may hold data."""
    _, at, place = str(error).rpartition(" - at ")
    return f" (at {place})" if at and isinstance(error, msgspec.MsgspecError) else ""


def _name_of(one: Any) -> str:
    return f"{one.__module__}.{one.__qualname__}" if isinstance(one, type) else str(one)
