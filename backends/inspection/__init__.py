"""States of checkpoints from outside a job: listed, read as tables, compared, checked and written.

Commands and the data source call it. `catalogue` lists the states, `state_parts` reads them, and `keyed_parts`
those of keyed state. `reading` has the functions for users, `lookups` and `changes` those for single keys and for differences. `state_check` checks whether a job could
restore the states. `operator_writing` and `keyed_writing` write states. Start with `catalogue`.
"""

from holdfast.backends.inspection.catalogue import (
    StoredState,
    find_state,
    states_of,
    stored_states,
)
from holdfast.backends.inspection.changes import state_changes
from holdfast.backends.inspection.comparison import (
    Difference,
    FileComparison,
    compare_files,
    compare_states,
    compare_subtasks,
)
from holdfast.backends.inspection.keyed_parts import KeyedDescriptor, shown_schema
from holdfast.backends.inspection.keyed_sizes import KeySizes, key_sizes
from holdfast.backends.inspection.keyed_writing import (
    described_table,
    empty_backend,
    is_keyed,
    timers_table,
    without_tables,
    write_keyed_states,
    write_keyed_tables,
    write_partitioned_tables,
)
from holdfast.backends.inspection.lookups import FoundRows, OpenState, StateLookup, open_state
from holdfast.backends.inspection.operator_writing import StateRows, write_states
from holdfast.backends.inspection.reading import (
    Raw,
    at_keys,
    iter_state,
    key_schema,
    read_state,
    readable_state,
    states,
)
from holdfast.backends.inspection.state_check import RestoreOutcome, StateCheck, check_restore
from holdfast.backends.inspection.state_parts import ReadableState, ShownColumn, StatePart

__all__ = [
    "Difference",
    "FileComparison",
    "FoundRows",
    "KeySizes",
    "KeyedDescriptor",
    "OpenState",
    "Raw",
    "ReadableState",
    "RestoreOutcome",
    "ShownColumn",
    "StateCheck",
    "StateLookup",
    "StatePart",
    "StateRows",
    "StoredState",
    "at_keys",
    "check_restore",
    "compare_files",
    "compare_states",
    "compare_subtasks",
    "described_table",
    "empty_backend",
    "find_state",
    "is_keyed",
    "iter_state",
    "key_schema",
    "key_sizes",
    "open_state",
    "read_state",
    "readable_state",
    "shown_schema",
    "state_changes",
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
