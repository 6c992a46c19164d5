"""The check, before a job starts, whether it can restore the states of a checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
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
from holdfast.backends.serializers import IncompatibleTypeError, Serializer, stored_serializer
from holdfast.backends.snapshot import has_same_form
from holdfast.common import map_in_parallel
from holdfast.errors import InvalidRequestError
from holdfast.locations.coordination import find_checkpoint

_OperatorDescriptor = ListStateDescriptor | MapStateDescriptor


class RestoreOutcome(Enum):
    """The outcome of a restore for a state."""

    RESTORED = "restored"
    MIGRATED = "migrated"
    DROPPED = "dropped"
    NEW = "new"
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True, slots=True)
class StateCheck:
    """The outcome of a restore for one state.

    Attributes:
        operator: The operator's uid.
        state: The state's name.
        outcome: The outcome. A state without a descriptor is stored again, and is dropped only without its operator.
        stored: The stored type, for people; empty for a new state. Several types, if subtasks have stored a state that is
            declared in different forms.
        wanted: The declared type, for people; empty without a descriptor.
        reason: The reason why it is incompatible.
    """

    operator: str
    state: str
    outcome: RestoreOutcome
    stored: str = ""
    wanted: str = ""
    reason: str = ""


def check_restore(
    pointer: str | PathLike[str], descriptors: Mapping[str, Sequence[KeyedDescriptor]]
) -> list[StateCheck]:
    """Find the outcome for each state if a job with these descriptors started from a checkpoint.

    Reads the metadata and the stored columns of each state, of every subtask if the state is declared, but no elements.
    Only the restore itself can find keys of a map that become equal when a field is removed, and refuses them. A
    descriptor of a list or map is for the operator state of its name, or if that doesn't exist for a keyed list or map.

    Args:
        pointer: As for `read_state`.
        descriptors: The job's descriptors by uid of their operator.

    Returns:
        One for each state that is stored or declared, in that order.

    Raises:
        InvalidRequestError: Two descriptors of an operator have the same name.
        CheckpointNotFoundError: There is no such checkpoint, or a state file is gone.
        CheckpointCorruptedError: Stored bytes are damaged.
    """
    stored = find_checkpoint(pointer).metadata.operators
    checks: list[StateCheck] = []
    for uid, operator in stored.items():
        left = _by_name(uid, descriptors.get(uid, ()))
        for state in states_of(uid, operator):
            if state.name is None:
                state.readable()  # raises the error of a lost manifest; raw state has no type that could change
                continue
            declared = left.get(state.name)
            if declared is not None and state.is_keyed and _can_be_for(declared, state):
                checks.append(_check_keyed(state, left.pop(state.name), operator.max_parallelism))
                continue
            wanted = None
            if isinstance(declared, _OperatorDescriptor) and not state.is_keyed:
                wanted = declared
                del left[state.name]
            checks.append(_check_operator_state(state, wanted, is_there=uid in descriptors))
        checks += [_new(uid, descriptor) for descriptor in left.values()]
    return checks + [
        _new(uid, descriptor)
        for uid, wanted in descriptors.items()
        if uid not in stored
        for descriptor in wanted
    ]


def _can_be_for(descriptor: KeyedDescriptor, state: StoredState) -> bool:
    """Return whether a descriptor can be for a keyed state: one of a list or map may be for new operator state instead."""
    kinds = {ListStateDescriptor: "keyed list", MapStateDescriptor: "keyed map"}
    return kinds.get(type(descriptor), state.kind) == state.kind


def _by_name(uid: str, descriptors: Sequence[KeyedDescriptor]) -> dict[str, KeyedDescriptor]:
    by_name = {descriptor.name: descriptor for descriptor in descriptors}
    if len(by_name) < len(descriptors):
        message = f"operator {uid!r} has two descriptors with the same name among {sorted(by_name)}"
        raise InvalidRequestError(message)
    return by_name


def _schemas(name: str, parts: Sequence[StatePart]) -> list[pa.Schema]:
    """Read the stored columns of a state; several schemas if its subtasks have stored it in different forms."""
    schemas: list[pa.Schema] = []
    for schema in map_in_parallel(lambda part: part.stored_schema(), parts):
        if not any(has_same_form(schema, known, name) for known in schemas):
            schemas.append(schema)
    return schemas


def _check_operator_state(
    state: StoredState, wanted: _OperatorDescriptor | None, *, is_there: bool
) -> StateCheck:
    name = state.name or ""
    # A state that is not declared may be stored in several forms.
    schemas = _schemas(name, state.parts[:1] if wanted is None else state.parts)
    names = [
        " to ".join(stored_serializer(field, name).name for field in schema) for schema in schemas
    ]
    check = partial(StateCheck, state.operator, name, stored=" or ".join(dict.fromkeys(names)))
    if wanted is None:
        return check(RestoreOutcome.RESTORED if is_there else RestoreOutcome.DROPPED)
    check = partial(check, wanted=_types(wanted))
    serializers = _serializers(wanted)
    if any(len(serializers) != len(schema) for schema in schemas):
        reason = "a list and a map are different kinds of state"
        return check(RestoreOutcome.INCOMPATIBLE, reason=reason)
    try:
        migrations = [
            serializer.migration(stored_serializer(field, name), field.type)
            for schema in schemas
            for serializer, field in zip(serializers, schema, strict=True)
        ]
    except IncompatibleTypeError as error:
        return check(RestoreOutcome.INCOMPATIBLE, reason=str(error))
    return check(RestoreOutcome.MIGRATED if any(migrations) else RestoreOutcome.RESTORED)


def _check_keyed(state: StoredState, wanted: KeyedDescriptor, max_parallelism: int) -> StateCheck:
    tables = [part for part in state.parts if isinstance(part, Table)]
    stored = " or ".join(dict.fromkeys(shown_types(table.table.spec) for table in tables))
    check = partial(StateCheck, state.operator, wanted.name, stored=stored)
    outcomes = map_in_parallel(
        lambda table: restore_outcome_of(table, wanted, max_parallelism), tables
    )
    for _, _, reason in outcomes:
        if reason:
            return check(RestoreOutcome.INCOMPATIBLE, wanted=_types(wanted), reason=reason)
    is_same = all(is_same for is_same, _, _ in outcomes)
    outcome = RestoreOutcome.RESTORED if is_same else RestoreOutcome.MIGRATED
    return check(outcome, wanted=outcomes[0][1])


def _new(uid: str, descriptor: KeyedDescriptor) -> StateCheck:
    return StateCheck(uid, descriptor.name, RestoreOutcome.NEW, wanted=_types(descriptor))


def _types(descriptor: KeyedDescriptor) -> str:
    return " to ".join(serializer.name for serializer in _serializers(descriptor))


def _serializers(descriptor: KeyedDescriptor) -> tuple[Serializer, ...]:
    if isinstance(descriptor, MapStateDescriptor):
        return (descriptor.key_serializer, descriptor.value_serializer)
    return (descriptor.serializer,)
