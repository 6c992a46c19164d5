"""Checks before a job starts whether it could go on with a checkpoint's states."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from os import PathLike

import pyarrow as pa

from holdfast.backends.descriptors import ListStateDescriptor, MapStateDescriptor
from holdfast.backends.inspection.catalogue import StoredState, states_of
from holdfast.backends.inspection.keyed_parts import (
    KeyedDescriptor,
    Table,
    restore_outcome_of,
    shown_types,
)
from holdfast.backends.inspection.state_parts import StatePart
from holdfast.backends.serializers import Outcome, Serializer, stored_serializer
from holdfast.backends.snapshot import has_same_form
from holdfast.common import map_in_parallel
from holdfast.errors import InvalidRequestError
from holdfast.locations.coordination import find_checkpoint

_OperatorDescriptor = ListStateDescriptor | MapStateDescriptor


class Fate(Enum):
    """What a restore would do with a state."""

    RESTORED = "restored"
    MIGRATED = "migrated"
    DROPPED = "dropped"
    NEW = "new"
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True, slots=True)
class StateCheck:
    """Return whether a job could go on with one state.

    Attributes:
        operator: The operator's uid.
        state: The state's name.
        fate: What becomes of it. What the operator has no descriptor of is carried on, not lost; it
            is dropped when the operator is gone.
        stored: Type of what is stored, for people; empty if there is nothing. Types, if subtasks have
            stored a state that is asked for in different ways.
        wanted: Type that is asked for, for people; empty if it isn't.
        reason: Why it is incompatible.
    """

    operator: str
    state: str
    fate: Fate
    stored: str = ""
    wanted: str = ""
    reason: str = ""


def check(
    pointer: str | PathLike[str], descriptors: Mapping[str, Sequence[KeyedDescriptor]]
) -> list[StateCheck]:
    """Say what would become of each state if a job with these descriptors began from a checkpoint.

    Reads the metadata and, of each state, how it is stored, in every subtask if it is asked for; no
    elements. So one thing shows at the restore alone: keys of a map that were different and, without a
    field that was removed, are the same. They are refused then. A descriptor of a list or map is for
    operator state of its name, or if there is none for a keyed list or map.

    Args:
        pointer: As for `read_state`.
        descriptors: The job's descriptors by uid of their operator.

    Returns:
        One for each state that is stored or asked for, in that order.

    Raises:
        InvalidRequestError: Two descriptors of an operator have one name.
        CheckpointNotFoundError: There is no such checkpoint, or a state file is gone.
        CheckpointCorruptedError: Stored bytes are damaged.
    """
    stored = find_checkpoint(pointer).metadata.operators
    checks: list[StateCheck] = []
    for uid, operator in stored.items():
        left = _by_name(uid, descriptors.get(uid, ()))
        for state in states_of(uid, operator):
            if state.name is None:
                state.readable()  # says why keyed state is without a name; raw state has no type that could change
                continue
            asked = left.get(state.name)
            if asked is not None and state.is_keyed and _may_be(asked, state):
                checks.append(_checked_keyed(state, left.pop(state.name), operator.max_parallelism))
                continue
            wanted = None
            if isinstance(asked, _OperatorDescriptor) and not state.is_keyed:
                wanted = asked
                del left[state.name]
            # A state that is only carried on may be stored in several ways.
            parts = state.parts[:1] if wanted is None else state.parts
            schemas = _schemas(state.name, parts)
            checks.append(_checked(uid, state.name, schemas, wanted, is_there=uid in descriptors))
        checks += [_new(uid, descriptor) for descriptor in left.values()]
    return checks + [
        _new(uid, descriptor)
        for uid, wanted in descriptors.items()
        if uid not in stored
        for descriptor in wanted
    ]


def _may_be(descriptor: KeyedDescriptor, state: StoredState) -> bool:
    """Return whether a descriptor is of that keyed state: one of a list or map may be of new operator state instead."""
    kinds = {ListStateDescriptor: "keyed list", MapStateDescriptor: "keyed map"}
    return kinds.get(type(descriptor), state.kind) == state.kind


def _by_name(uid: str, descriptors: Sequence[KeyedDescriptor]) -> dict[str, KeyedDescriptor]:
    by_name = {descriptor.name: descriptor for descriptor in descriptors}
    if len(by_name) < len(descriptors):
        message = f"operator {uid!r} has two descriptors of one name among {sorted(by_name)}"
        raise InvalidRequestError(message)
    return by_name


def _schemas(name: str, parts: Sequence[StatePart]) -> list[pa.Schema]:
    """How a state is stored; several if its subtasks have stored it in different ways."""
    schemas: list[pa.Schema] = []
    for schema in map_in_parallel(lambda part: part.stored(), parts):
        if not any(has_same_form(schema, known, name) for known in schemas):
            schemas.append(schema)
    return schemas


def _checked(
    uid: str,
    name: str,
    schemas: list[pa.Schema],
    wanted: _OperatorDescriptor | None,
    *,
    is_there: bool,
) -> StateCheck:
    names = [
        " to ".join(stored_serializer(field, name).name for field in schema) for schema in schemas
    ]
    stored = " or ".join(dict.fromkeys(names))
    if wanted is None:
        return StateCheck(uid, name, Fate.RESTORED if is_there else Fate.DROPPED, stored)
    serializers = _serializers(wanted)
    types = _types(wanted)
    if any(len(serializers) != len(schema) for schema in schemas):
        reason = "a list and a map are different kinds of state"
        return StateCheck(uid, name, Fate.INCOMPATIBLE, stored, types, reason)
    compatibilities = [
        serializer.compatibility(stored_serializer(field, name), field.type)
        for schema in schemas
        for serializer, field in zip(serializers, schema, strict=True)
    ]
    for compatibility in compatibilities:
        if compatibility.outcome is Outcome.INCOMPATIBLE:
            return StateCheck(uid, name, Fate.INCOMPATIBLE, stored, types, compatibility.reason)
    as_is = all(compatibility.outcome is Outcome.AS_IS for compatibility in compatibilities)
    return StateCheck(uid, name, Fate.RESTORED if as_is else Fate.MIGRATED, stored, types)


def _checked_keyed(state: StoredState, wanted: KeyedDescriptor, max_parallelism: int) -> StateCheck:
    tables = [part for part in state.parts if isinstance(part, Table)]
    stored = " or ".join(dict.fromkeys(shown_types(table.table.spec) for table in tables))
    outcomes = map_in_parallel(
        lambda table: restore_outcome_of(table, wanted, max_parallelism), tables
    )
    reason = next((reason for _, _, reason in outcomes if reason), "")
    if reason:
        types = _types(wanted)
        return StateCheck(state.operator, wanted.name, Fate.INCOMPATIBLE, stored, types, reason)
    fate = Fate.RESTORED if all(is_same for is_same, _, _ in outcomes) else Fate.MIGRATED
    return StateCheck(state.operator, wanted.name, fate, stored, outcomes[0][1])


def _new(uid: str, descriptor: KeyedDescriptor) -> StateCheck:
    return StateCheck(uid, descriptor.name, Fate.NEW, wanted=_types(descriptor))


def _types(descriptor: KeyedDescriptor) -> str:
    return " to ".join(serializer.name for serializer in _serializers(descriptor))


def _serializers(descriptor: KeyedDescriptor) -> tuple[Serializer, ...]:
    if isinstance(descriptor, MapStateDescriptor):
        return (descriptor.key_serializer, descriptor.value_serializer)
    return (descriptor.serializer,)
