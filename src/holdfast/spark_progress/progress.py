"""Spark's side of a checkpoint: MessagePack in `_metadata`, under the coordinator state `spark`.

{"query_id": str, "run_id": str, "batch_id": int, "offsets": str, "checkpoint_location": str,
"spark_version": str, "watermark": int, "batch_time": int, "query_name": str}
"""

import json
from typing import Any

import msgspec

from holdfast.common import Count, message_pack_decoder
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError
from holdfast.locations.metadata import CheckpointMetadata

SPARK = "spark"


class SparkProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Spark's side of a checkpoint, kept in `_metadata` under `spark`.

    Attributes:
        query_id: Spark's id of the query.
        run_id: Spark's id of the query's run.
        batch_id: The micro-batch that the checkpoint completes.
        offsets: Spark's offset log entry of that batch, as it stands in its file.
        checkpoint_location: Spark's own checkpoint directory.
        spark_version: Version of Spark that ran the batch.
        watermark: The watermark that the batch was run with, in milliseconds since 1970. It can be above
            Spark's own, in `offsets`, if the query began with a savepoint.
        batch_time: The time that the batch was run with, in milliseconds since 1970. It is above Spark's own, in
            `offsets`, if the driver's clock went back.
        query_name: The name that the query was given; empty if it has none.
    """

    query_id: str
    run_id: str
    batch_id: Count
    offsets: str
    checkpoint_location: str
    spark_version: str
    watermark: int = 0
    batch_time: int = 0
    query_name: str = ""

    @property
    def times(self) -> tuple[int, int]:
        """The time and the watermark that the batch was run with, in milliseconds since 1970."""
        batch_time, watermark = logged_times(self.offsets)
        return max(batch_time, self.batch_time), max(watermark, self.watermark)


_DECODER = message_pack_decoder(SparkProgress)


def progress_of(metadata: CheckpointMetadata) -> SparkProgress:
    """Spark's side of a checkpoint.

    Raises:
        InvalidRequestError: The checkpoint was not taken by a Spark query.
        CheckpointCorruptedError: The record of Spark's progress can't be read.
    """
    encoded = metadata.coordinator_states.get(SPARK)
    if encoded is None:
        message = f"checkpoint {metadata.checkpoint_id} was not taken by a Spark query"
        raise InvalidRequestError(message)
    try:
        return _DECODER.decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = (
            f"Spark's side of checkpoint {metadata.checkpoint_id} of job {metadata.job_id} can't be "
            f"decoded ({error})"
        )
        raise CheckpointCorruptedError(message) from error


def logged_times(offsets: str) -> tuple[int, int]:
    """The time and the watermark of a batch by its offset log entry, in milliseconds since 1970.

    Both are 0 where the entry has none.

    Raises:
        CheckpointCorruptedError: The entry has no times, or they are no numbers.
    """
    settings = _settings_and_sources(offsets)[0]
    times = settings.get("batchTimestampMs", 0), settings.get("batchWatermarkMs", 0)
    if not all(type(time) is int for time in times):
        raise CheckpointCorruptedError(f"Spark's offsets have times {times}")
    return times


def sources_of(offsets: str) -> list[str]:
    """Where each source of a batch is to be read up to, by its offset log entry, in the order of the plan."""
    return _settings_and_sources(offsets)[1]


def plan_of(offsets: str) -> str:
    """A text that tells a batch from any other batch of that number: the offsets of sources, and the time.

    The time is needed because offsets of files are only counts.
    """
    settings, sources = _settings_and_sources(offsets)
    return f"{settings.get('batchTimestampMs')} {' '.join(sources)}"


def _settings_and_sources(offsets: str) -> tuple[dict[str, Any], list[str]]:
    """An entry has a line for its version, a line for times and settings, and a line for each source.

    Raises:
        CheckpointCorruptedError: Its times and settings are no JSON object.
    """
    settings, *sources = offsets.splitlines()[1:] or ["{}"]
    try:
        known = json.loads(settings)
    except (ValueError, RecursionError) as error:
        raise CheckpointCorruptedError(f"Spark's offsets can't be read ({error})") from error
    if not isinstance(known, dict):
        raise CheckpointCorruptedError(f"Spark's offsets have settings {settings[:50]!r}")
    return known, sources
