"""The ways to Spark: a classic session of this process, or Spark Connect.

`engine` says what differs; `classic` and `connect` do it; `choice` picks the engine of a session for `query/`,
which makes all calls. Start with `engine`.
"""

from holdfast.spark.engines.choice import engine_of
from holdfast.spark.engines.engine import Engine, Jobs, RunningQuery, guard_against_other_plans
from holdfast.spark.engines.stopping import error_of_task

__all__ = [
    "Engine",
    "Jobs",
    "RunningQuery",
    "engine_of",
    "error_of_task",
    "guard_against_other_plans",
]
