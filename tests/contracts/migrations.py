"""Changes of the type of a state, and types that several tests change."""

from collections.abc import Collection
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from contracts.elements import list_state, restore_from

from holdfast.backends import ListStateDescriptor, OperatorStateBackend
from holdfast.backends.serializers import serializer_of
from holdfast.errors import StateMigrationError


def migrate(
    stored: Any,
    wanted: Any,
    values: Any,
    defaults: dict[str, Any] | None = None,
    *,
    renamed: dict[str, str] | None = None,
    dropped: Collection[str] = (),
) -> list[Any]:
    """Return the elements as the other type, read from a snapshot, and once more from a second one."""
    backend = OperatorStateBackend()
    list_state(backend, "s", stored).add_all(values)
    list_state(backend, "untouched", stored).add_all(values)
    backend = restore_from(backend)
    descriptor = ListStateDescriptor(
        "s", wanted, defaults=defaults, renamed=renamed, dropped=dropped
    )
    result = backend.get_list_state(descriptor).get()
    assert backend.get_list_state(descriptor).get() == result
    again = restore_from(backend)
    assert again.get_list_state(descriptor).get() == result
    assert restore_from(again).get_list_state(ListStateDescriptor("s", wanted)).get() == result
    objects = values.to_pylist() if isinstance(values, pa.Array) else values
    assert list_state(again, "untouched", stored).get() == list(objects)
    return result


def refusal_of(stored: Any, wanted: Any, values: Any = ()) -> str:
    """Return the message for an incompatible type; the elements are still readable as their own type."""
    backend = OperatorStateBackend()
    list_state(backend, "s", stored).add_all(values)
    backend = restore_from(backend)
    with pytest.raises(StateMigrationError, match="'s'") as caught:
        list_state(backend, "s", wanted)
    message = str(caught.value)
    assert serializer_of(stored).name in message
    assert serializer_of(wanted).name in message
    assert list_state(backend, "s", stored).get() == list(values)
    return message


def struct(**fields: Any) -> pa.StructType:
    return pa.struct(list(fields.items()))


def required_field(name: str, type: Any) -> pa.Field:
    return pa.field(name, type, nullable=False)


INTS = {
    str(int_type): (int_type, low, high)
    for bits in (8, 16, 32, 64)
    for int_type, low, high in (
        (getattr(pa, f"int{bits}")(), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1),
        (getattr(pa, f"uint{bits}")(), 0, 2**bits - 1),
    )
}


CATEGORY = pa.dictionary(pa.int32(), pa.string())


# MessagePack. Classes with one name and different fields, as in two versions of a program.


def message(*fields: Any, **options: Any) -> Any:
    return msgspec.defstruct("Message", fields, module=__name__, **options)


V1 = message(("a", int), ("b", str))
