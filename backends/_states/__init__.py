"""States of checkpoints as Arrow tables: read, and written as users give them."""

from holdfast.backends._states._reading import (
    Raw,
    iter_state,
    read_state,
    states,
    stored_state,
)
from holdfast.backends._states._stored_states import (
    RawPart,
    Section,
    StoredState,
    managed_state,
    state_names,
)
from holdfast.backends._states._writing import StateRows, write_states

__all__ = [
    "Raw",
    "RawPart",
    "Section",
    "StateRows",
    "StoredState",
    "iter_state",
    "managed_state",
    "read_state",
    "state_names",
    "states",
    "stored_state",
    "write_states",
]
