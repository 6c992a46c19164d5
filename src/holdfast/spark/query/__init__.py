"""A query on the driver: every micro-batch becomes a checkpoint.

`queries` has the functions that Spark calls. They pass each batch to a `query_run`, which makes a `batch_run` of it:
that applies the operators and lets the sink run. The `coordinator` begins and commits the checkpoint. For that
`continuation` decides whether the query can continue from the job's last checkpoint, and claims the job. Start with
`queries`.
"""

from holdfast.spark.query.batch_run import current_batch
from holdfast.spark.query.checkpoints import (
    CLEANER,
    PendingCheckpoint,
    pin_checkpoints,
    writer_version,
)
from holdfast.spark.query.continuation import Continuation, StoredJob
from holdfast.spark.query.coordinator import CheckpointCoordinator, Retention
from holdfast.spark.query.queries import StatefulOperator, StatefulQuery, stateful, stateful_query
