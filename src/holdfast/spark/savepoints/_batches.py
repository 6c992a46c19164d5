"""Which batch a query has come to, as its checkpointLocation says."""

from collections.abc import Collection

from holdfast.errors import CheckpointNotFoundError
from holdfast.spark.savepoints._files import names_in, read
from holdfast.spark.savepoints._logs import decode_offsets, decode_state_ids
from holdfast.spark.savepoints._selection import Batch, numbers, version_of

_STATE_STORE = "spark.sql.streaming.stateStore."


def newest_committed(checkpoint_location: str) -> int:
    """The last batch that Spark has noted to be done.

    Raises:
        CheckpointNotFoundError: None is.
    """
    names = names_in(f"{checkpoint_location}/commits")
    committed = numbers([f"commits/{name}" for name in names], "commits")
    if not committed:
        raise CheckpointNotFoundError("the query has done no batch yet", checkpoint_location)
    return committed[-1]


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
    with_ids = {
        version.version for path in paths if (version := version_of(path)) and version.state_id
    }
    committed = [one for one in numbers(paths, "commits") if one <= batch_id]
    return Batch(
        batch_id=batch_id,
        is_committed=batch_id in committed,
        offsets=decode_offsets(read(uri).decode(), uri=uri),
        state_ids={
            one + 1: decode_state_ids(read(entry).decode(), uri=entry)
            for one in committed
            if one + 1 in with_ids
            for entry in [f"{checkpoint_location}/commits/{one}"]
        },
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
