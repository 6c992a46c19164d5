"""Whether a job could go on with a keyed state: judged as a restore does, without reading a row."""

from collections.abc import Callable
from typing import Any

from holdfast.backends.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.backends.inspection.keyed_parts import Table, shown_types
from holdfast.backends.keyed import ColumnarStateTables, KeyedStateBackend
from holdfast.backends.keys import KeyGroupRange
from holdfast.errors import InvalidRequestError, StateMigrationError

KeyedDescriptor = (
    ValueStateDescriptor
    | ListStateDescriptor
    | MapStateDescriptor
    | ReducingStateDescriptor
    | AggregatingStateDescriptor
)

GETTERS: dict[type, Callable[..., Any]] = {
    ValueStateDescriptor: KeyedStateBackend.get_state,
    ListStateDescriptor: KeyedStateBackend.get_list_state,
    MapStateDescriptor: KeyedStateBackend.get_map_state,
    ReducingStateDescriptor: KeyedStateBackend.get_reducing_state,
    AggregatingStateDescriptor: KeyedStateBackend.get_aggregating_state,
}
"""The method of the backend that returns the state, by the type of the descriptor."""


def outcome_of(
    table: Table, descriptor: KeyedDescriptor, max_parallelism: int
) -> tuple[bool, str, str]:
    """How a restore would judge a subtask's part of a state.

    Args:
        table: The part.
        descriptor: The descriptor with which the job asks for the state.
        max_parallelism: Number of key groups of the job.

    Returns:
        Whether values stay as they are; the types that they get, for people; and why they can't be restored,
        empty if they can.
    """
    groups = KeyGroupRange(*table.handle.key_groups)
    stored = table.table.spec
    tables = ColumnarStateTables(groups, [table.handle])
    try:
        backend = KeyedStateBackend(tables, stored.key, max_parallelism, groups)
        GETTERS[type(descriptor)](backend, descriptor, stored.namespace)
    except (StateMigrationError, InvalidRequestError) as error:
        return False, "", str(error.args[0])
    else:
        now = tables.specs()[descriptor.name]
        return now.values.equals(stored.values, check_metadata=True), shown_types(now), ""
    finally:
        tables.close()
