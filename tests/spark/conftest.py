"""The session and the jobs of the tests on Spark, stopped queries, and S3 servers."""

from jobs.fixtures import job, spark, state_backend
from jobs.stopped_query import as_without_spark, directory, stopped_query
from servers.s3 import ministack, ministack_bucket, moto, moto_bucket

__all__ = [
    "as_without_spark",
    "directory",
    "job",
    "ministack",
    "ministack_bucket",
    "moto",
    "moto_bucket",
    "spark",
    "state_backend",
    "stopped_query",
]
