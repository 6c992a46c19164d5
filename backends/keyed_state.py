"""What users of keyed state need: the backend, where it keeps rows, descriptors, and the kinds of state.

`KeyedStateBackend` gives a state for a descriptor; its rows lie in `ColumnarStateTables`, or in `HeapStateTables`.
Each kind of state is a class for the current key, whose `columns` are another one, for many keys at once. Lists and
maps have the descriptors of operator state, which `holdfast.backends` has.
"""

from holdfast.backends.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    StateVisibility,
    UpdateType,
    ValueStateDescriptor,
)
from holdfast.backends.keyed import (
    AggregatingColumns,
    AggregatingState,
    AverageColumns,
    ColumnarStateTables,
    CombiningColumns,
    FiredTimers,
    FoldingColumns,
    HeapStateTables,
    KeyedListState,
    KeyedStateBackend,
    Keys,
    ListColumns,
    MapColumns,
    MapEntries,
    MapState,
    ReducingState,
    Timers,
    TimerService,
    ValueColumns,
    ValueState,
)

__all__ = [
    "AggregateFunction",
    "AggregatingColumns",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "AverageColumns",
    "ColumnarStateTables",
    "CombiningColumns",
    "FiredTimers",
    "FoldingColumns",
    "HeapStateTables",
    "KeyedListState",
    "KeyedStateBackend",
    "Keys",
    "ListColumns",
    "MapColumns",
    "MapEntries",
    "MapState",
    "ReducingState",
    "ReducingStateDescriptor",
    "StateTtlConfig",
    "StateVisibility",
    "TimerService",
    "Timers",
    "UpdateType",
    "ValueColumns",
    "ValueState",
    "ValueStateDescriptor",
]
