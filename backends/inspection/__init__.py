"""States of checkpoints seen from outside of a job: read as tables, described, compared, checked, written anew.

Commands and the data source call it. `catalogue` lists the states, `state_parts` reads them; `operator_parts`,
`keyed_parts` and `raw_parts` are what their kinds are stored as, and `key_choice` narrows a keyed state to one key, whose values
`key_values` parses.
`operator_writing` and `keyed_writing` are the way back. Start with `catalogue`.
"""

from holdfast.backends.inspection.catalogue import StoredState, states_of, stored_states
from holdfast.backends.inspection.comparison import (
    Difference,
    FileComparison,
    compare,
    compare_files,
    compare_subtasks,
)
from holdfast.backends.inspection.keyed_parts import KeyedDescriptor, shown_schema
from holdfast.backends.inspection.keyed_writing import (
    described_table,
    is_keyed,
    timers_table,
    without_tables,
    write_keyed_states,
    write_keyed_tables,
    write_partitioned_tables,
)
from holdfast.backends.inspection.operator_writing import StateRows, write_states
from holdfast.backends.inspection.reading import (
    Raw,
    iter_state,
    read_state,
    readable_state,
    states,
)
from holdfast.backends.inspection.state_check import Fate, StateCheck, check
from holdfast.backends.inspection.state_parts import ReadableState, ShownColumn, StatePart

__all__ = [
    "Difference",
    "Fate",
    "FileComparison",
    "KeyedDescriptor",
    "Raw",
    "ReadableState",
    "ShownColumn",
    "StateCheck",
    "StatePart",
    "StateRows",
    "StoredState",
    "check",
    "compare",
    "compare_files",
    "compare_subtasks",
    "described_table",
    "is_keyed",
    "iter_state",
    "read_state",
    "readable_state",
    "shown_schema",
    "states",
    "states_of",
    "stored_states",
    "timers_table",
    "without_tables",
    "write_keyed_states",
    "write_keyed_tables",
    "write_partitioned_tables",
    "write_states",
]
