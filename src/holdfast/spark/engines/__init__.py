"""Access to Spark from a batch: through a classic session of this process, or through Spark Connect.

`engine` has the interface, which `classic` and `connect` implement; `query/` makes all calls. Only classic sessions report
`jobs`. Start with `engine`.
"""

from typing import TYPE_CHECKING

import pyspark
from pyspark.sql import SparkSession

from holdfast.common import Clock
from holdfast.errors import InvalidRequestError
from holdfast.spark.engines.batch_errors import error_of_task
from holdfast.spark.engines.engine import Engine, RunningQuery, pin_planner_settings

if TYPE_CHECKING:
    from holdfast.spark.engines.jobs import Jobs


def engine_of(session: SparkSession, client_session: SparkSession | None, clock: Clock) -> Engine:
    """Return the engine for a batch. Raises `InvalidRequestError` if the caller is not Spark, or too old."""
    # Each engine imports modules of PySpark that an installation for the other may lack.
    if hasattr(session, "_jsparkSession"):
        from holdfast.spark.engines.classic import ClassicEngine  # noqa: PLC0415

        return ClassicEngine(session, clock)
    if client_session is None:
        raise InvalidRequestError("stateful(...) runs only as the function of foreachBatch")
    if session.session_id == client_session.session_id:  # type: ignore[attr-defined]  # of Connect
        raise InvalidRequestError(
            "stateful queries on Spark Connect need PySpark 4.3 or later on the server and the client, and "
            f"this is PySpark {pyspark.__version__}: its batches run in the client's session, whose settings "
            "may differ from those with which the query was started"
        )
    from holdfast.spark.engines.connect import ConnectEngine  # noqa: PLC0415

    return ConnectEngine(client_session, session)
