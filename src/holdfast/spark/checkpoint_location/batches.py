"""Which batch a query has come to, as its checkpointLocation says."""

from collections.abc import Collection
from functools import cache

from holdfast.errors import CheckpointNotFoundError
from holdfast.spark.checkpoint_location.file_names import numbers, state_file
from holdfast.spark.checkpoint_location.logs import (
    STATE_STORE,
    LoggedBatch,
    decode_offsets,
    decode_state_ids,
)
from holdfast.spark.checkpoint_location.small_files import names_in, read_text


def newest_committed(checkpoint_location: str) -> int | None:
    """The last batch that Spark has noted to be done; None if there is no such batch."""
    return _newest(checkpoint_location, "commits")


def newest_batch(checkpoint_location: str) -> int | None:
    """The last batch that Spark has begun; None if there is no such batch."""
    return _newest(checkpoint_location, "offsets")


def batch_at(checkpoint_location: str, paths: Collection[str], batch_id: int) -> LoggedBatch:
    """A batch as Spark's logs describe it.

    Args:
        checkpoint_location: Where the logs are.
        paths: All files there.
        batch_id: The batch.

    Raises:
        CheckpointNotFoundError: The logs don't have the batch any more, or not yet.
        CheckpointCorruptedError: An entry can't be read.
    """
    uri = f"{checkpoint_location}/offsets/{batch_id}"
    if f"offsets/{batch_id}" not in paths:
        raise CheckpointNotFoundError(f"Spark's logs don't have batch {batch_id}", uri)
    committed = numbers(paths, "commits")

    @cache  # many stores ask for the same; most versions nobody asks for
    def state_ids(version: int) -> frozenset[str]:
        if version - 1 not in committed:
            return frozenset()
        entry = f"{checkpoint_location}/commits/{version - 1}"
        return decode_state_ids(read_text(entry), uri=entry)

    return LoggedBatch(
        batch_id=batch_id,
        is_committed=batch_id in committed,
        offsets=decode_offsets(read_text(uri), uri=uri),
        state_ids=state_ids,
    )


def inferred_settings(paths: Collection[str]) -> dict[str, str]:
    """Settings that follow from names of files, and that Spark doesn't note itself."""
    files = [file for path in paths if (file := state_file(path)) is not None]
    settings = {}
    if any(file.state_id for file in files):
        settings[f"{STATE_STORE}checkpointFormatVersion"] = "2"
    if any(file.kind == "changelog" for file in files):
        settings[f"{STATE_STORE}rocksdb.changelogCheckpointing.enabled"] = "true"
    return settings


def _newest(checkpoint_location: str, log: str) -> int | None:
    names = names_in(f"{checkpoint_location}/{log}")
    return max(numbers((f"{log}/{name}" for name in names), log), default=None)
