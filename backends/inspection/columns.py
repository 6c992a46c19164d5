"""Stored columns of a state as Arrow columns that anybody can read, without the job's classes."""

from dataclasses import dataclass

import msgspec
import pyarrow as pa

from holdfast.backends.arrow import json_text
from holdfast.backends.serializers import StoredSerializer, packed, stored_in
from holdfast.errors import CheckpointCorruptedError


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """How a stored column is shown.

    Attributes:
        name: The column's name.
        state: The state, for errors.
        stored: What the stored column says of itself.
        stored_type: Arrow type of the stored column.
    """

    name: str
    state: str
    stored: StoredSerializer
    stored_type: pa.DataType

    @classmethod
    def of(cls, field: pa.Field, name: str, state: str) -> "ShownColumn":
        """The way to show a stored column.

        Raises:
            CheckpointCorruptedError: The column says of itself what nobody has written.
        """
        return cls(name, state, stored_in(field, state), field.type)

    @property
    def type(self) -> pa.DataType:
        """Arrow type of what is shown: pickles as they are, and what MessagePack holds as JSON text."""
        match self.stored.kind:
            case "arrow":
                return self.stored_type
            case "pickle":
                return pa.binary()
            case "messagepack":
                return pa.string()

    @property
    def stored_as(self) -> str:
        """How the column is stored, for people: `arrow`, or of which class."""
        kind, name = self.stored.kind, self.stored.name
        return kind if kind == "arrow" and not self.stored.form else f"{kind} of {name}"


def shown(how: ShownColumn, stored: pa.Array) -> pa.Array:
    """The column as it is shown.

    Raises:
        CheckpointCorruptedError: What is stored is not what the column says of itself.
    """
    if how.stored.kind == "arrow":
        return stored
    if how.stored.kind == "pickle":
        return stored.cast(pa.binary())
    try:
        texts = list(map(json_text, msgspec.msgpack.decode(packed(stored))))
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        message = f"elements of state {how.state!r} can't be decoded ({type(error).__name__})"
        raise CheckpointCorruptedError(message) from None
    return pa.array(texts, pa.string())
