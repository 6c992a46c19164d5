"""Which batch a query has come to, as its checkpointLocation says."""

from collections.abc import Collection
from functools import cache

from holdfast.errors import CheckpointNotFoundError
from holdfast.spark.checkpoint_location.logs import decode_offsets, decode_state_ids
from holdfast.spark.checkpoint_location.selection import Batch, numbers, version_of
from holdfast.spark.checkpoint_location.small_files import names_in, read_text

_STATE_STORE = "spark.sql.streaming.stateStore."


def newest_committed(checkpoint_location: str) -> int | None:
    """The last batch that Spark has noted to be done; None if none is."""
    names = names_in(f"{checkpoint_location}/commits")
    return max(numbers((f"commits/{name}" for name in names), "commits"), default=None)


def batch_at(checkpoint_location: str, paths: Collection[str], batch_id: int) -> Batch:
    """What Spark's logs say of a batch.

    Args:
        checkpoint_location: Where the logs are.
        paths: All files there.
        batch_id: The batch.

    Raises:
        CheckpointNotFoundError: They have it no more, or not yet.
        CheckpointCorruptedError: They say something else.
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

    return Batch(
        batch_id=batch_id,
        is_committed=batch_id in committed,
        offsets=decode_offsets(read_text(uri), uri=uri),
        state_ids=state_ids,
    )


def inferred_settings(paths: Collection[str]) -> dict[str, str]:
    """Settings that follow from names of files, and that Spark doesn't note itself."""
    versions = [version for path in paths if (version := version_of(path)) is not None]
    found = {}
    if any(one.state_id for one in versions):
        found[f"{_STATE_STORE}checkpointFormatVersion"] = "2"
    if any(one.kind == "changelog" for one in versions):
        found[f"{_STATE_STORE}rocksdb.changelogCheckpointing.enabled"] = "true"
    return found
