"""Operators as users declare them, functions and sinks with state, and the routing of rows to subtasks.

Users implement the classes of `functions`, and sinks; an `Operator` combines them, and `routing` routes its rows.
`query/` runs operators, `subtask/` runs their functions. Start with `functions`.
"""

from holdfast.spark.operators.combination import Combination, CombinedRouting, Grouping
from holdfast.spark.operators.functions import (
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedFunction,
    KeyedProcessFunction,
    StatefulFunction,
)
from holdfast.spark.operators.key_loop import (
    KeyLoop,
    Order,
    TimeDomain,
    inverse,
    key_tuples,
    named_key,
)
from holdfast.spark.operators.operator import (
    Broadcast,
    CheckpointedSink,
    Operator,
    Sink,
    check_callable,
    check_sinks,
    checkpointed_sinks,
    snapshot_sinks,
    unused_sink_states,
)
from holdfast.spark.operators.output_rows import OutputRows, Row
from holdfast.spark.operators.routing import (
    SUBTASK,
    Routing,
    arrow_schema,
    is_collated,
    read_table,
)
from holdfast.spark.operators.side_outputs import (
    LATE,
    OutputSchema,
    SideRows,
    main_output,
    side_columns,
    side_output,
)
from holdfast.spark.operators.task_homes import TaskHomes
from holdfast.spark.operators.two_inputs import (
    FIRST,
    SECOND,
    TIME,
    StreamInput,
    rows_of_input,
    union_inputs,
)
