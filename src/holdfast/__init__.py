"""Holdfast: Flink-grade checkpoints and state for PySpark.

`import holdfast as hf` has everything that a job needs:

    spark = hf.configure(SparkSession.builder, checkpoint_dir="s3://bucket/holdfast").getOrCreate()
    totals = hf.keyed(events, "user", uid="totals").agg(n=hf.count(), spent=hf.sum("price"))

Further names are in `holdfast.backends` (states and their types), `holdfast.locations` (checkpoints in their stores),
`holdfast.flink`, `holdfast.testing` and `holdfast.errors`. Names are imported on first access, so that code which only
reads checkpoints needs no PySpark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.backends.inspection import (
        StateRows,
        iter_state,
        open_state,
        read_state,
        state_changes,
        states,
    )
    from holdfast.backends.keys import subtask_of_key
    from holdfast.spark.aggregates import (
        approx_count_distinct,
        avg,
        collect,
        count,
        first,
        last,
        max,  # noqa: A004  # as in pyspark.sql.functions
        min,  # noqa: A004
        sum,  # noqa: A004
    )
    from holdfast.spark.by_key import IdleTicks, keyed
    from holdfast.spark.compat import StatefulProcessor, StatefulProcessorHandle
    from holdfast.spark.data_source import scan_state
    from holdfast.spark.operators import (
        BroadcastProcessFunction,
        CheckpointedSink,
        KeyedBroadcastProcessFunction,
        KeyedCoProcessFunction,
        KeyedProcessFunction,
        StatefulFunction,
    )
    from holdfast.spark.query import stateful, stateful_query
    from holdfast.spark.savepoints import (
        NewOperator,
        application_id,
        preview_rollback,
        restore_savepoint,
        roll_back,
        rollback_points,
        stop_with_savepoint,
        take_savepoint,
        write_savepoint,
    )
    from holdfast.spark.settings import configure
    from holdfast.spark.state_export import spark_initial_state
    from holdfast.spark.state_import import import_spark_state
    from holdfast.spark.supervision import run
    from holdfast.spark.windows import (
        count_windows,
        session_windows,
        sliding_windows,
        tumbling_windows,
    )
    from holdfast.spark_progress import copy_savepoint, progress_of, subtasks, verify_checkpoints

__all__ = [
    "BroadcastProcessFunction",
    "CheckpointedSink",
    "IdleTicks",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "NewOperator",
    "StateRows",
    "StatefulFunction",
    "StatefulProcessor",
    "StatefulProcessorHandle",
    "application_id",
    "approx_count_distinct",
    "avg",
    "collect",
    "configure",
    "copy_savepoint",
    "count",
    "count_windows",
    "first",
    "import_spark_state",
    "iter_state",
    "keyed",
    "last",
    "max",
    "min",
    "open_state",
    "preview_rollback",
    "progress_of",
    "read_state",
    "restore_savepoint",
    "roll_back",
    "rollback_points",
    "run",
    "scan_state",
    "session_windows",
    "sliding_windows",
    "spark_initial_state",
    "state_changes",
    "stateful",
    "stateful_query",
    "states",
    "stop_with_savepoint",
    "subtask_of_key",
    "subtasks",
    "sum",
    "take_savepoint",
    "tumbling_windows",
    "verify_checkpoints",
    "write_savepoint",
]

_MODULES = {
    "backends.inspection": "StateRows iter_state open_state read_state state_changes states",
    "backends.keys": "subtask_of_key",
    "spark.aggregates": "approx_count_distinct avg collect count first last max min sum",
    "spark.by_key": "IdleTicks keyed",
    "spark.compat": "StatefulProcessor StatefulProcessorHandle",
    "spark.data_source": "scan_state",
    "spark.state_export": "spark_initial_state",
    "spark.state_import": "import_spark_state",
    "spark.operators": "BroadcastProcessFunction CheckpointedSink KeyedBroadcastProcessFunction KeyedCoProcessFunction "
    "KeyedProcessFunction StatefulFunction",
    "spark.query": "stateful stateful_query",
    "spark.savepoints": "NewOperator application_id preview_rollback restore_savepoint roll_back rollback_points "
    "stop_with_savepoint take_savepoint write_savepoint",
    "spark.settings": "configure",
    "spark.supervision": "run",
    "spark.windows": "count_windows session_windows sliding_windows tumbling_windows",
    "spark_progress": "copy_savepoint progress_of subtasks verify_checkpoints",
}
"""The names of `__all__`, by the module that defines them."""


if not TYPE_CHECKING:  # else type checkers would accept any name

    def __getattr__(name: str) -> Any:
        """Import a public name on first access."""
        for module, names in _MODULES.items():
            if name in names.split():
                value = globals()[name] = getattr(import_module(f"holdfast.{module}"), name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
