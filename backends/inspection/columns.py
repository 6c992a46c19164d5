"""Stored columns of a state as Arrow columns that anybody can read, without the job's classes."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
import pyarrow as pa

from holdfast.backends.inspection.message_pack_columns import (
    MessagePackColumn,
    NotReadableError,
    column_of,
)
from holdfast.backends.serializers import Kind, packed, stored_in
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """How a stored column is shown.

    Attributes:
        name: The column's name.
        state: The state, for errors.
        kind: How the column is stored; `raw` if only the operator knows what its bytes are.
        stored_name: Type of the elements as it is stored, for people.
        type: Arrow type of what is shown.
        stored_type: Arrow type of the stored column.
        schema: JSON schema of what MessagePack holds; else empty.
        wide_integers: Whether whole numbers of MessagePack are shown as decimals.
    """

    name: str
    state: str
    kind: Kind | Literal["raw"]
    stored_name: str
    type: pa.DataType
    stored_type: pa.DataType
    schema: bytes = b""
    wide_integers: bool = False

    @classmethod
    def of(cls, field: pa.Field, name: str, state: str, *, wide_integers: bool) -> "ShownColumn":
        """The way to show a stored column.

        Raises:
            CheckpointCorruptedError: The column says of itself what nobody has written.
        """
        stored = stored_in(field, state)
        shown = cls(
            name,
            state,
            stored.kind,
            stored.name,
            field.type if stored.kind == "arrow" else pa.binary(),
            field.type,
            stored.schema,
            wide_integers,
        )
        column = shown.message_pack
        return shown if column is None else replace(shown, type=column.type)

    @property
    def message_pack(self) -> MessagePackColumn | None:
        """How MessagePack is shown; None if the column holds none, or if bytes are shown."""
        if self.kind != "messagepack":
            return None
        try:
            schema = msgspec.json.decode(self.schema, type=dict[str, Any])
            return column_of(schema, wide_integers=self.wide_integers)
        except NotReadableError:
            return None
        except (msgspec.MsgspecError, KeyError, TypeError, AttributeError) as error:
            message = f"state {self.state!r} does not say what its elements are ({error})"
            raise CheckpointCorruptedError(message) from error


def shown(how: ShownColumn, stored: pa.Array) -> pa.Array:
    """The column as it is shown.

    Raises:
        CheckpointCorruptedError: What is stored is not what the column says of itself.
        InvalidRequestError: A value has no room in the type that is shown.
    """
    if how.kind == "arrow":
        return stored
    column = how.message_pack
    if column is None:
        return stored.cast(pa.binary())
    try:
        values = msgspec.msgpack.decode(packed(stored))
        shown_values = [column.show(value) for value in values]
    except (
        msgspec.MsgspecError,
        ValueError,
        TypeError,
        AttributeError,
        LookupError,
    ) as error:
        message = f"elements of state {how.state!r} can't be decoded ({type(error).__name__})"
        raise CheckpointCorruptedError(message) from None
    try:
        return pa.array(shown_values, column.type)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        message = (
            f"state {how.state!r} has values that {column.type} has no room for; whole numbers "
            "beyond 64 bits are read with wide_integers=True"
        )
        raise InvalidRequestError(message) from None
