"""The last step of a restore, if it is asked for: Spark spreads its state over other partitions."""

from holdfast.errors import InvalidRequestError
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark import sessions
from holdfast.spark.checkpoint_location import (
    PROVIDER_CLASS,
    SHUFFLE_PARTITIONS,
    decode_offsets,
    read_text,
)
from holdfast.spark_progress import progress_of


def check_can_be_spread(savepoint: CompletedCheckpoint, shuffle_partitions: int) -> None:
    """Refuse to spread state of Spark's that can't be.

    Raises:
        InvalidRequestError: The number, the savepoint or this process doesn't allow it.
    """
    pointer = savepoint.location.external_pointer
    if type(shuffle_partitions) is not int or shuffle_partitions < 1:
        message = f"shuffle_partitions is {shuffle_partitions!r}; it must be a number, at least 1"
        raise InvalidRequestError(message)
    if savepoint.metadata.operators:
        message = (
            "Spark counts spreading its state as a batch, which operators of Holdfast don't see; "
            "leave shuffle_partitions out"
        )
        raise InvalidRequestError(message, pointer)
    offsets = decode_offsets(progress_of(savepoint.metadata).offsets, uri=pointer)
    if offsets.pinned.get(SHUFFLE_PARTITIONS) == str(shuffle_partitions):
        message = f"state is over {shuffle_partitions} partitions already; leave the number out"
        raise InvalidRequestError(message, pointer)
    provider = offsets.pinned.get(PROVIDER_CLASS, "")
    if not provider.endswith("RocksDBStateStoreProvider"):
        message = (
            f"Spark can spread only state in RocksDB, and this is in {provider or 'none'}; leave "
            "shuffle_partitions out"
        )
        raise InvalidRequestError(message, pointer)
    sessions.spreads_state()  # for its error


def spreads(location: str, batch_id: int, shuffle_partitions: int) -> bool:
    """Whether a batch is the one by which Spark spreads the state over so many partitions."""
    uri = f"{location}/offsets/{batch_id}"
    pinned = decode_offsets(read_text(uri), uri=uri).pinned
    return pinned.get(SHUFFLE_PARTITIONS) == str(shuffle_partitions)
