"""Kinds of keyed state and timers, all of them rows of a table.

    …_columns           a state by arrays: many keys at once. It reads and writes the stored values themselves
    …_state             the same of the current key, on top: pages of Python objects, fetched and written back once
    state_columns       the base of states by arrays; `of_current_key`: the base of states of the current key
    state_rows          the rows of a state, with values in their form (`value_form`, `list_form`)
    key_context         the current key and namespace, and the pages of the batch
    timers              timers by arrays; `timer_service` has those of the current key

Start with `value_columns`, then `value_state`.
"""

from holdfast.backends.keyed.states.aggregating_columns import AggregatingColumns, AverageColumns
from holdfast.backends.keyed.states.aggregating_state import AggregatingState, Average
from holdfast.backends.keyed.states.key_context import KeyContext
from holdfast.backends.keyed.states.list_columns import ListColumns
from holdfast.backends.keyed.states.list_form import ListForm
from holdfast.backends.keyed.states.list_state import KeyedListState
from holdfast.backends.keyed.states.map_columns import MapColumns, MapEntries
from holdfast.backends.keyed.states.map_state import MapState
from holdfast.backends.keyed.states.of_current_key import OfCurrentKey
from holdfast.backends.keyed.states.reducing_columns import (
    CombiningColumns,
    FoldingColumns,
)
from holdfast.backends.keyed.states.reducing_state import ReducingState
from holdfast.backends.keyed.states.state_rows import CheckedRows, ValueRows
from holdfast.backends.keyed.states.timer_service import TimerService
from holdfast.backends.keyed.states.timers import TIME, FiredTimers, Timers
from holdfast.backends.keyed.states.value_columns import ValueColumns
from holdfast.backends.keyed.states.value_form import ValueForm
from holdfast.backends.keyed.states.value_state import ValueState

__all__ = [
    "TIME",
    "AggregatingColumns",
    "AggregatingState",
    "Average",
    "AverageColumns",
    "CheckedRows",
    "CombiningColumns",
    "FiredTimers",
    "FoldingColumns",
    "KeyContext",
    "KeyedListState",
    "ListColumns",
    "ListForm",
    "MapColumns",
    "MapEntries",
    "MapState",
    "OfCurrentKey",
    "ReducingState",
    "TimerService",
    "Timers",
    "ValueColumns",
    "ValueForm",
    "ValueRows",
    "ValueState",
]
