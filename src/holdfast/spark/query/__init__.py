"""A query on the driver: every micro-batch becomes a checkpoint.

`queries` has the function that Spark calls. It hands each batch to the `query_run`, which makes a
`batch_run` of it: that applies the operators and lets the sink run. The `coordinator` begins and commits the
checkpoint; `continuation` says whether it may go on from the last. Start with `queries`.
"""

from holdfast.spark.query.batch_run import current_batch
from holdfast.spark.query.cleaning import CLEANER
from holdfast.spark.query.coordinator import CheckpointCoordinator
from holdfast.spark.query.held_checkpoints import retained
from holdfast.spark.query.pending_checkpoint import PendingCheckpoint
from holdfast.spark.query.queries import (
    StatefulOperator,
    StatefulQuery,
    stateful,
    stateful_query,
)
from holdfast.spark.query.writing_program import writer

__all__ = [
    "CLEANER",
    "CheckpointCoordinator",
    "PendingCheckpoint",
    "StatefulOperator",
    "StatefulQuery",
    "current_batch",
    "retained",
    "stateful",
    "stateful_query",
    "writer",
]
