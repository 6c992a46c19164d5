"""Which engine a session needs. Either kind of session may lack what the other kind imports."""

from pyspark.sql import SparkSession

from holdfast.common import Clock
from holdfast.errors import InvalidRequestError
from holdfast.spark.engines.engine import Engine


def engine_of(session: SparkSession, home: SparkSession | None, clock: Clock) -> Engine:
    """The way to Spark from a batch.

    Args:
        session: The session of the batch's rows.
        home: The client's own session, which knows of the query; a classic session needs none.
        clock: Says for how long Spark is waited for.

    Raises:
        InvalidRequestError: Spark does not call.
    """
    if hasattr(session, "_jsparkSession"):
        from holdfast.spark.engines.classic import ClassicEngine  # noqa: PLC0415

        return ClassicEngine(session, clock)
    if home is None:
        raise InvalidRequestError("stateful(...) runs only as the function of foreachBatch")
    from holdfast.spark.engines.connect import ConnectEngine  # noqa: PLC0415

    return ConnectEngine(home, session)
