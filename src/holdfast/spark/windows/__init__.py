"""Windows of event time: tumbling, sliding and session windows with late rows, for aggregates or a function.

    assigners      tumbling, sliding, session: the user's part; windows of keys in a batch, by namespaces in state
    sessions       session windows of keys, which are merged and have a state
    operators      the operators: add rows, emit complete or changed windows

Start with `assigners`, then `operators`.
"""

from holdfast.spark.windows.assigners import (
    FixedWindows,
    SessionWindows,
    Window,
    WindowAssigner,
    session_windows,
    sliding_windows,
    tumbling_windows,
)
from holdfast.spark.windows.operators import (
    END,
    START,
    WindowedAggregation,
    WindowedFunction,
    WindowFunction,
)

__all__ = [
    "END",
    "START",
    "FixedWindows",
    "SessionWindows",
    "Window",
    "WindowAssigner",
    "WindowFunction",
    "WindowedAggregation",
    "WindowedFunction",
    "session_windows",
    "sliding_windows",
    "tumbling_windows",
]
