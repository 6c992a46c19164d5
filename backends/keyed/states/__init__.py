"""Types of keyed state, and timers. Each is rows of a table.

    value_state, list_state, map_state, reducing_state, aggregating_state, timers
                   …Columns is a state of many keys at once, by Arrow arrays; …State is the same state of the current
                   key, by Python objects: a layer over …Columns that reads and writes many keys in one call
    current_key    the current key, and pages: values of the keys of a batch as Python objects
    state_rows     the rows of a state in its table, and the form of values in columns

Start with `value_state`.
"""

from holdfast.backends.keyed.states.aggregating_state import (
    AggregatingColumns,
    AggregatingState,
    Average,
    AverageColumns,
)
from holdfast.backends.keyed.states.current_key import CurrentKeyView, KeyCursor
from holdfast.backends.keyed.states.list_state import KeyedListState, ListColumns
from holdfast.backends.keyed.states.map_state import MapColumns, MapEntries, MapState
from holdfast.backends.keyed.states.reducing_state import (
    CombiningColumns,
    FoldingColumns,
    ReducingState,
)
from holdfast.backends.keyed.states.state_rows import CheckedRows, ListForm, ValueForm, ValueRows
from holdfast.backends.keyed.states.timers import TIME, FiredTimers, Timers, TimerService
from holdfast.backends.keyed.states.value_state import ValueColumns, ValueState

__all__ = [
    "TIME",
    "AggregatingColumns",
    "AggregatingState",
    "Average",
    "AverageColumns",
    "CheckedRows",
    "CombiningColumns",
    "CurrentKeyView",
    "FiredTimers",
    "FoldingColumns",
    "KeyCursor",
    "KeyedListState",
    "ListColumns",
    "ListForm",
    "MapColumns",
    "MapEntries",
    "MapState",
    "ReducingState",
    "TimerService",
    "Timers",
    "ValueColumns",
    "ValueForm",
    "ValueRows",
    "ValueState",
]
