"""The Spark application that lives in this process, if any, and what it can do to state."""

from pyspark import SparkContext
from pyspark.sql import SparkSession

from holdfast.errors import InvalidRequestError
from holdfast.spark import _sessions


def is_alive() -> bool:
    """Whether there is one; its executors keep state that stopped queries had, and store it."""
    return SparkContext._active_spark_context is not None  # noqa: SLF001  # no public way to ask


def check_can_spread() -> None:
    """Refuse what `spread` could not do.

    Raises:
        InvalidRequestError: No session here, or none that can.
    """
    session = SparkSession.getActiveSession() or SparkSession._instantiatedSession  # noqa: SLF001
    if not hasattr(session, "_streamingCheckpointManager") or not is_alive():
        message = "shuffle_partitions needs a classic session of Spark 4.2 or later in this process"
        raise InvalidRequestError(message)


def spread(checkpoint_location: str, partitions: int) -> None:
    """Spread the state of a stopped query over so many partitions; Spark notes that as a batch."""
    _sessions.repartition(checkpoint_location, partitions)
