"""The part of a serializer that is stored with its elements."""

from typing import Literal

import msgspec
import pyarrow as pa

from holdfast.common import message_pack_decoder
from holdfast.errors import CheckpointCorruptedError

Kind = Literal["arrow", "messagepack", "pickle"]


class StoredSerializer(msgspec.Struct, frozen=True):
    """How stored elements were written, so that a later program can judge whether it reads them.

    Attributes:
        kind: `arrow`: the column holds the elements themselves. `messagepack`, `pickle`: it holds
            the bytes of each.
        name: Type of the elements, for people.
        form: The same text for types that read and write the same values; empty for Arrow's own types
            and for pickles.
        fields: Names of the fields of the classes that elements are made of.
        leaves_out_defaults: Whether MessagePack lacks fields that had their default.
    """

    kind: Kind
    name: str
    form: str = ""
    fields: list[str] = []
    leaves_out_defaults: bool = False


_DECODER = message_pack_decoder(StoredSerializer)


def stored_in(field: pa.Field, state: str) -> StoredSerializer:
    """The serializer that a stored column of a state names.

    Raises:
        CheckpointCorruptedError: The column's note about its serializer can't be read.
    """
    content = (field.metadata or {}).get(_KEY)
    if content is None:
        return StoredSerializer("arrow", str(field.type))
    try:
        return _DECODER.decode(content)
    except msgspec.MsgspecError as error:
        message = f"state {state!r} does not say how it was stored ({error})"
        raise CheckpointCorruptedError(message) from error


def column(name: str, storage_type: pa.DataType, stored: StoredSerializer) -> pa.Field:
    """A column that says how it was written, for its type alone doesn't."""
    return pa.field(name, storage_type, metadata={_KEY: msgspec.msgpack.encode(stored)})


_KEY = b"holdfast.serializer"
