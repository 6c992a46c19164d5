"""What users of keyed state need: the backend, where it keeps rows, descriptors, and the kinds of state.

`KeyedStateBackend` gives a state for a descriptor; its rows lie in `ColumnarStateTables`, or in `HeapStateTables`.
Lists and maps have the descriptors of operator state, which `holdfast.backends` has.
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
    AggregatingState,
    ColumnarStateTables,
    HeapStateTables,
    KeyedListState,
    KeyedStateBackend,
    Keys,
    MapState,
    ReducingState,
    Timers,
    TimerService,
    ValueState,
)

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "ColumnarStateTables",
    "HeapStateTables",
    "KeyedListState",
    "KeyedStateBackend",
    "Keys",
    "MapState",
    "ReducingState",
    "ReducingStateDescriptor",
    "StateTtlConfig",
    "StateVisibility",
    "TimerService",
    "Timers",
    "UpdateType",
    "ValueState",
    "ValueStateDescriptor",
]
