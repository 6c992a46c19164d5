"""The id by which a sink that skips repeated batches knows a query."""

from holdfast.common import checkpoint_directory
from holdfast.spark.checkpoint_location import (
    APPLICATION_FILE,
    decode_application,
    names_in,
    query_id_of,
    read,
)
from holdfast.spark.query import current_batch
from holdfast.spark.savepoints.configuration import configuration_of, use_stores
from holdfast.spark.savepoints.stored_query import Place


def application_id(checkpoint_location: Place | None = None) -> str:
    """Return the id to give to a sink that skips a batch that it has seen, such as Delta's `txnAppId`.

    The id stays the same when Spark repeats a batch after a crash, so that the sink skips the repetition. After
    a roll back, a restore and in a fork it is a new one: batch ids come again with other rows there, and under the
    old id the sink would skip these without an error. Until the first of these it is Spark's query id.

    Args:
        checkpoint_location: The query's checkpointLocation, for a function of `foreachBatch` without operators of
            Holdfast. None inside a sink, or a function that `stateful_query` was given: then it is the id of the
            query that runs the batch, also with Spark Connect.

    Raises:
        InvalidRequestError: No location is given and this thread runs no batch, or no query has its
            checkpointLocation there yet.
        CheckpointCorruptedError: The id can't be read, or a roll back or restore is not finished there.
        StorageUnavailableError: The store could not be read.
    """
    if checkpoint_location is None:
        return current_batch().application_id()
    location = checkpoint_directory(checkpoint_location)
    use_stores(configuration_of(None), location)
    if APPLICATION_FILE not in names_in(location):
        return query_id_of(location)
    uri = f"{location}/{APPLICATION_FILE}"
    return decode_application(read(uri), uri=uri)
