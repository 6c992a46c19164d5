"""States of checkpoints looked at from outside: read as tables, described, compared, checked, written anew.

Commands and the data source call it. Start with `stored_states`.
"""

from holdfast.backends.inspection.comparison import (
    Difference,
    FileComparison,
    compare,
    compare_files,
    compare_subtasks,
)
from holdfast.backends.inspection.description import ColumnDescription, StateDescription, describe
from holdfast.backends.inspection.reading import Raw, iter_state, read_state, states, stored_state
from holdfast.backends.inspection.state_check import Fate, StateCheck, check
from holdfast.backends.inspection.stored_states import (
    RawPart,
    Section,
    StoredState,
    managed_state,
    state_names,
)
from holdfast.backends.inspection.writing import StateRows, write_states

__all__ = [
    "ColumnDescription",
    "Difference",
    "Fate",
    "FileComparison",
    "Raw",
    "RawPart",
    "Section",
    "StateCheck",
    "StateDescription",
    "StateRows",
    "StoredState",
    "check",
    "compare",
    "compare_files",
    "compare_subtasks",
    "describe",
    "iter_state",
    "managed_state",
    "read_state",
    "state_names",
    "states",
    "stored_state",
    "write_states",
]
