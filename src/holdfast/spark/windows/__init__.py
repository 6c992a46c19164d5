"""Windows of event time: tumbling, sliding and session windows with late rows, for aggregates or a function.

    assigners      tumbling, sliding, session: the user's part; assigns times to windows
    spans          windows of keys in a batch, by namespaces in state; tumbling and sliding windows
    sessions       session windows, which are merged and have a state
    operators      the operators: add rows, emit complete or changed windows

Start with `assigners`, then `operators`.
"""

from holdfast.spark.windows.assigners import (
    FixedWindows,
    SessionWindows,
    Window,
    WindowAssigner,
    session,
    sliding,
    tumbling,
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
    "session",
    "sliding",
    "tumbling",
]
