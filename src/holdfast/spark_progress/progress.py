"""Spark's side of a checkpoint: MessagePack in `_metadata`, under the coordinator state `spark`.

{"query_id": str, "run_id": str, "batch_id": int, "offsets": str, "checkpoint_location": str,
"spark_version": str}
"""

import json

import msgspec

from holdfast.common import Count
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError
from holdfast.locations.metadata import CheckpointMetadata

SPARK = "spark"


class SparkProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Spark's side of a checkpoint, kept in `_metadata` under `spark`.

    Attributes:
        query_id: Spark's id of the query.
        run_id: Spark's id of the query's run.
        batch_id: The micro-batch that the checkpoint completes.
        offsets: Spark's offset log entry of that batch, as it stands in its file.
        checkpoint_location: Spark's own checkpoint directory.
        spark_version: Version of Spark that ran the batch.
    """

    query_id: str
    run_id: str
    batch_id: Count
    offsets: str
    checkpoint_location: str
    spark_version: str


def progress_of(metadata: CheckpointMetadata) -> SparkProgress:
    """Spark's side of a checkpoint.

    Raises:
        InvalidRequestError: The checkpoint was not taken by a Spark query.
        CheckpointCorruptedError: What Spark has written can't be read.
    """
    encoded = metadata.coordinator_states.get(SPARK)
    if encoded is None:
        message = f"checkpoint {metadata.checkpoint_id} was not taken by a Spark query"
        raise InvalidRequestError(message)
    try:
        return msgspec.msgpack.decode(encoded, type=SparkProgress)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = (
            f"Spark's side of checkpoint {metadata.checkpoint_id} of job {metadata.job_id} can't be "
            f"decoded ({error})"
        )
        raise CheckpointCorruptedError(message) from error


def plan_of(offsets: str) -> str:
    """What tells a batch from any other batch of that number: the offsets of sources, and the time.

    The time is needed because offsets of files are only counts. An entry has a line for its version, a
    line for the time and settings, and a line for each source.
    """
    settings, *sources = offsets.splitlines()[1:] or ["{}"]
    return f"{json.loads(settings).get('batchTimestampMs')} {' '.join(sources)}"
