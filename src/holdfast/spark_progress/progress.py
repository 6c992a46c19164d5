"""Progress of the Spark query in a checkpoint: MessagePack in `_metadata`, under the coordinator state `spark`.

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
    """Progress of the Spark query whose micro-batch a checkpoint completes.

    Attributes:
        query_id: Spark's id of the query.
        run_id: Spark's id of the query's run.
        batch_id: The micro-batch that the checkpoint completes.
        offsets: Spark's offset log entry of that batch, as in its file.
        checkpoint_location: Spark's own checkpoint directory.
        spark_version: Version of Spark that ran the batch.
        watermark: Watermark of the batch, in milliseconds since 1970. It can be above Spark's, in `offsets`, if the
            query started from a savepoint.
        batch_time: Time of the batch, in milliseconds since 1970. It is above Spark's, in `offsets`, if the driver's
            clock was set back.
        query_name: Name of the query; empty if it has none.
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
        """Time and watermark of the batch, in milliseconds since 1970."""
        batch_time, watermark = logged_times(self.offsets)
        return max(batch_time, self.batch_time), max(watermark, self.watermark)


_DECODER = message_pack_decoder(SparkProgress)


def progress_of(metadata: CheckpointMetadata) -> SparkProgress:
    """Return the progress of the Spark query that took a checkpoint.

    Raises:
        InvalidRequestError: The checkpoint was not taken by a Spark query.
        CheckpointCorruptedError: The progress can't be decoded.
    """
    encoded = metadata.coordinator_states.get(SPARK)
    if encoded is None:
        message = f"checkpoint {metadata.checkpoint_id} was not taken by a Spark query"
        raise InvalidRequestError(message, kind="not-a-savepoint")
    try:
        return _DECODER.decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = (
            f"progress of Spark in checkpoint {metadata.checkpoint_id} of job {metadata.job_id} can't be "
            f"decoded ({error})"
        )
        raise CheckpointCorruptedError(message) from error


def find_progress(metadata: CheckpointMetadata) -> SparkProgress | None:
    """Return the progress of the Spark query that took a checkpoint, or None. Raises `CheckpointCorruptedError`."""
    return progress_of(metadata) if SPARK in metadata.coordinator_states else None


def logged_times(offsets: str) -> tuple[int, int]:
    """Return time and watermark in an offset log entry, in milliseconds since 1970; 0 where it has none.

    Raises:
        CheckpointCorruptedError: The entry can't be parsed, or its times are not integers.
    """
    settings = _settings_and_sources(offsets)[0]
    times = settings.get("batchTimestampMs", 0), settings.get("batchWatermarkMs", 0)
    if not all(type(time) is int for time in times):
        raise CheckpointCorruptedError(
            f"Spark's offsets have times {times}, which must be integers"
        )
    return times


def sources_of(offsets: str) -> list[str]:
    """Return the end offset of each source in an offset log entry, in the order of the plan."""
    return _settings_and_sources(offsets)[1]


def plan_of(offsets: str) -> str:
    """Return a string that identifies the planned batch: its time, and the offsets of its sources.

    The time is needed because offsets of file sources are only counts.
    """
    settings, sources = _settings_and_sources(offsets)
    return f"{settings.get('batchTimestampMs')} {' '.join(sources)}"


def _settings_and_sources(offsets: str) -> tuple[dict[str, Any], list[str]]:
    """Parse an offset log entry: a line each for its version, its times and settings, and each source.

    Raises:
        CheckpointCorruptedError: Times and settings are not a JSON object.
    """
    settings, *sources = offsets.splitlines()[1:] or ["{}"]
    try:
        known = json.loads(settings)
    except (ValueError, RecursionError) as error:
        raise CheckpointCorruptedError(f"Spark's offsets can't be read ({error})") from error
    if not isinstance(known, dict):
        raise CheckpointCorruptedError(
            f"Spark's offsets have settings {settings[:50]!r}, which must be a JSON object"
        )
    return known, sources
