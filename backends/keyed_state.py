"""What users of keyed state need: the backend, where it keeps rows, descriptors, and the kinds of state.

`KeyedStateBackend` gives a state for a descriptor; its rows lie in `ColumnarStateTables`, or in `HeapStateTables`.
"""

from holdfast.backends.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
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
from holdfast.backends.keys import KeyGroupRange

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "ColumnarStateTables",
    "HeapStateTables",
    "KeyGroupRange",
    "KeyedListState",
    "KeyedStateBackend",
    "Keys",
    "ListStateDescriptor",
    "MapState",
    "MapStateDescriptor",
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
