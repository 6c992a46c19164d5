"""The session and the jobs of the tests on Spark."""

from jobs.fixtures import job, spark

__all__ = ["job", "spark"]
