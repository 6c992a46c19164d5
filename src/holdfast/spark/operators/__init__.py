"""The parts that users make queries of: functions with state, and sinks; and how rows get to subtasks.

`functions` and `sinks` are what users implement, an `Operator` puts them together; `routing`
deals its rows. `query/` runs them, `subtask/` runs the function. Start with `functions`.
"""

from holdfast.spark.operators.functions import BroadcastProcessFunction, StatefulFunction
from holdfast.spark.operators.key_loop import KeyLoop, Order, TimeDomain, inverse
from holdfast.spark.operators.keyed_process_function import KeyedProcessFunction
from holdfast.spark.operators.operator import Broadcast, Operator, Sink, check_can_be_called
from holdfast.spark.operators.output_rows import OutputRows, Row
from holdfast.spark.operators.routing import (
    Routing,
    arrow_schema,
    is_collated,
    read_table,
    settled_table,
)
from holdfast.spark.operators.sinks import (
    CheckpointedSink,
    checkpointed_sinks,
    initialize_sinks,
    sinks_left_behind,
    snapshot_sinks,
)

__all__ = [
    "Broadcast",
    "BroadcastProcessFunction",
    "CheckpointedSink",
    "KeyLoop",
    "KeyedProcessFunction",
    "Operator",
    "Order",
    "OutputRows",
    "Routing",
    "Row",
    "Sink",
    "StatefulFunction",
    "TimeDomain",
    "arrow_schema",
    "check_can_be_called",
    "checkpointed_sinks",
    "initialize_sinks",
    "inverse",
    "is_collated",
    "read_table",
    "settled_table",
    "sinks_left_behind",
    "snapshot_sinks",
]
