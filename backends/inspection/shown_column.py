"""Stored columns of a state as Arrow columns that anybody can read, without the job's classes."""

from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pyarrow as pa

from holdfast.backends.arrow import json_text
from holdfast.backends.serializers import Kind, StoredSerializer, packed, stored_in
from holdfast.common import message_pack_decoder
from holdfast.errors import CheckpointCorruptedError

_PLAIN = message_pack_decoder(list[Any])


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """How a stored column is shown.

    Attributes:
        name: The column's name.
        state: The state, for errors.
        stored: The serializer that wrote the column; None if only the operator knows what its bytes are.
        stored_type: Arrow type of the stored column.
    """

    name: str
    state: str
    stored: StoredSerializer | None
    stored_type: pa.DataType

    @classmethod
    def of(cls, field: pa.Field, name: str, state: str) -> "ShownColumn":
        """The way to show a stored column.

        Raises:
            CheckpointCorruptedError: The column's note about its serializer can't be read.
        """
        return cls(name, state, stored_in(field, state), field.type)

    @property
    def kind(self) -> Kind | Literal["raw"]:
        """How the column is stored; `raw` if only the operator knows what its bytes are."""
        return "raw" if self.stored is None else self.stored.kind

    @property
    def stored_name(self) -> str:
        """Name of the elements' type as it is stored, for people."""
        return "bytes" if self.stored is None else self.stored.name

    @property
    def form(self) -> str:
        """A text that tells types of classes apart; empty for other types."""
        return "" if self.stored is None else self.stored.form

    @property
    def is_arrow(self) -> bool:
        """Whether elements are Arrow's own, so that the column's type says all about them."""
        return self.kind == "arrow" and not self.form

    @property
    def type(self) -> pa.DataType:
        """Arrow type of what is shown: pickles as they are, and what MessagePack holds as JSON text."""
        match self.kind:
            case "arrow" | "raw":
                return self.stored_type
            case "pickle":
                return pa.binary()
            case "messagepack":
                return pa.string()


def shown(how: ShownColumn, stored: pa.Array) -> pa.Array:
    """The column as it is shown.

    Raises:
        CheckpointCorruptedError: The stored values are not of the type that the column names.
    """
    if how.kind in {"arrow", "raw"}:
        return stored
    if how.kind == "pickle":
        return stored.cast(pa.binary())
    try:
        texts = list(map(json_text, _PLAIN.decode(packed(stored))))
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        message = f"elements of state {how.state!r} can't be decoded ({type(error).__name__})"
        raise CheckpointCorruptedError(message) from None
    return pa.array(texts, pa.string())
