"""Windows of event time: tumbling, sliding and session windows with late rows, for aggregates or a function.

    assigning      tumbling_windows, …: what users write, and which windows times belong to
    spans          windows of keys in a batch, as state knows them
    fixed          keeps tumbling and sliding windows
    sessions       keeps session windows, which are merged
    operators      the operators: rows in, windows that are complete or have changed out

Start with `assigning`, then `operators`.
"""

from holdfast.spark.windows.assigning import (
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
