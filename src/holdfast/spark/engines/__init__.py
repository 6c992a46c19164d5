"""The ways to Spark: a classic session of this process, or Spark Connect."""

from holdfast.spark.engines._engine import Engine, Jobs, RunningQuery, guard_against_other_plans

__all__ = ["Engine", "Jobs", "RunningQuery", "guard_against_other_plans"]
