"""The public names of keyed state: the backend, its tables, descriptors, and states.

`KeyedStateBackend` returns a state for a descriptor, and stores its rows in `ColumnarStateTables` or `HeapStateTables`.
Each state is a class for the current key, whose `columns` are a class for many keys at once. Lists and maps use the
descriptors of operator state, in `holdfast.backends`.
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
