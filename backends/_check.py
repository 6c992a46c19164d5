"""What would become of a checkpoint's states, before a job starts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from os import PathLike

import pyarrow as pa

from holdfast.backends._descriptors import ListStateDescriptor, MapStateDescriptor
from holdfast.backends._sections import read_schema
from holdfast.backends._serializers import Outcome, Serializer, stored_in
from holdfast.errors import InvalidRequestError
from holdfast.locations import OperatorState, load_checkpoint, resolve_pointer

Descriptor = ListStateDescriptor | MapStateDescriptor


class Fate(Enum):
    """What becomes of a state."""

    RESTORED = "restored"
    MIGRATED = "migrated"
    DROPPED = "dropped"
    NEW = "new"
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True, slots=True)
class StateCheck:
    """What would become of one state.

    Attributes:
        uid: Its operator.
        name: The state.
        fate: What becomes of it. What the operator has no descriptor of is carried on, not lost; it
            is dropped when the operator is gone.
        stored: Type of what is stored, for people; empty if there is nothing.
        wanted: Type that is asked for, for people; empty if it isn't.
        reason: Why it is incompatible.
    """

    uid: str
    name: str
    fate: Fate
    stored: str = ""
    wanted: str = ""
    reason: str = ""


def check(
    pointer: str | PathLike[str], descriptors: Mapping[str, Sequence[Descriptor]]
) -> list[StateCheck]:
    """Say what would become of each state if a job with these descriptors began from a checkpoint.

    Reads the metadata and, of each state, how it is stored; no elements.

    Args:
        pointer: URI or path of a checkpoint or savepoint, or of its metadata file.
        descriptors: The job's descriptors by uid of their operator.

    Returns:
        One for each state that is stored or asked for, in that order.

    Raises:
        InvalidRequestError: Two descriptors of an operator have one name.
        CheckpointNotFoundError: There is no such checkpoint, or a state file is gone.
        CheckpointCorruptedError: What was read is not what was written.
    """
    stored = load_checkpoint(resolve_pointer(pointer)).metadata.operators
    checks: list[StateCheck] = []
    for uid, operator in stored.items():
        left = _by_name(uid, descriptors.get(uid, ()))
        for name, schema in _schemas(operator).items():
            is_there = uid in descriptors
            checks.append(_checked(uid, name, schema, left.pop(name, None), is_there=is_there))
        checks += [_new(uid, one) for one in left.values()]
    return checks + [
        _new(uid, one) for uid, wanted in descriptors.items() if uid not in stored for one in wanted
    ]


def _by_name(uid: str, descriptors: Sequence[Descriptor]) -> dict[str, Descriptor]:
    by_name = {one.name: one for one in descriptors}
    if len(by_name) < len(descriptors):
        message = f"operator {uid!r} has two descriptors of one name among {sorted(by_name)}"
        raise InvalidRequestError(message)
    return by_name


def _schemas(operator: OperatorState) -> dict[str, pa.Schema]:
    """How each state is stored, by name; one subtask says it for all."""
    schemas: dict[str, pa.Schema] = {}
    for subtask in operator.subtasks.values():
        for handle in subtask.managed_operator:
            for name, one in handle.states.items():
                if name not in schemas:
                    schemas[name] = read_schema(handle.stream, one.offset, one.length, name=name)
    return schemas


def _checked(
    uid: str, name: str, schema: pa.Schema, wanted: Descriptor | None, *, is_there: bool
) -> StateCheck:
    stored = " to ".join(stored_in(field, name).name for field in schema)
    if wanted is None:
        return StateCheck(uid, name, Fate.RESTORED if is_there else Fate.DROPPED, stored)
    serializers = _serializers(wanted)
    types = " to ".join(one.name for one in serializers)
    if len(serializers) != len(schema):
        reason = "a list and a map are different kinds of state"
        return StateCheck(uid, name, Fate.INCOMPATIBLE, stored, types, reason)
    compatibilities = [
        one.compatibility(stored_in(field, name), field.type)
        for one, field in zip(serializers, schema, strict=True)
    ]
    for one in compatibilities:
        if one.outcome is Outcome.INCOMPATIBLE:
            return StateCheck(uid, name, Fate.INCOMPATIBLE, stored, types, one.reason)
    as_is = all(one.outcome is Outcome.AS_IS for one in compatibilities)
    return StateCheck(uid, name, Fate.RESTORED if as_is else Fate.MIGRATED, stored, types)


def _new(uid: str, descriptor: Descriptor) -> StateCheck:
    types = " to ".join(one.name for one in _serializers(descriptor))
    return StateCheck(uid, descriptor.name, Fate.NEW, wanted=types)


def _serializers(descriptor: Descriptor) -> tuple[Serializer, ...]:
    if isinstance(descriptor, MapStateDescriptor):
        return (descriptor.key_serializer, descriptor.value_serializer)
    return (descriptor.serializer,)
