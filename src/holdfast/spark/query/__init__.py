"""A query on the driver: every micro-batch becomes a checkpoint.

`stateful` is the function that Spark calls; `query_run` takes one batch after the other; `batch` runs the
operators and the sink; `coordinator` commits. Start with `stateful`.
"""

from holdfast.spark.query.coordinator import (
    _CLEANER,
    CheckpointCoordinator,
    PendingCheckpoint,
    writer,
)
from holdfast.spark.query.held_checkpoints import retained
from holdfast.spark.query.stateful_query import (
    StatefulOperator,
    StatefulQuery,
    checkpointed,
    stateful,
)

__all__ = [
    "_CLEANER",
    "CheckpointCoordinator",
    "PendingCheckpoint",
    "StatefulOperator",
    "StatefulQuery",
    "checkpointed",
    "retained",
    "stateful",
    "writer",
]
