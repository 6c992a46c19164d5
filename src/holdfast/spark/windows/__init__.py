"""Windows: tumbling, sliding and session windows with late rows, and count windows, for aggregates or a function.

    assigners      tumbling, sliding, session, count: the user's part; windows of keys in a batch, by namespaces in state
    sessions       session windows of keys, which are merged and have a state
    counts         count windows of keys, and when they are emitted
    triggers       when windows of event time are emitted, and when they expire
    windowed       the base of the operators: add rows, emit windows
    operators      the operators: aggregates, or a function

Start with `assigners`, then `operators`.
"""

from holdfast.spark.windows.assigners import (
    CountWindow,
    CountWindows,
    FixedWindows,
    SessionWindows,
    Window,
    WindowAssigner,
    count_windows,
    session_windows,
    sliding_windows,
    tumbling_windows,
)
from holdfast.spark.windows.operators import WindowedAggregation, WindowedFunction, WindowFunction
from holdfast.spark.windows.triggers import Early, Emit
from holdfast.spark.windows.windowed import END, START

__all__ = [
    "END",
    "START",
    "CountWindow",
    "CountWindows",
    "Early",
    "Emit",
    "FixedWindows",
    "SessionWindows",
    "Window",
    "WindowAssigner",
    "WindowFunction",
    "WindowedAggregation",
    "WindowedFunction",
    "count_windows",
    "session_windows",
    "sliding_windows",
    "tumbling_windows",
]
