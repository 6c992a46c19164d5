"""The session and the jobs of the integration tests."""

from jobs.fixtures import job, spark

__all__ = ["job", "spark"]
