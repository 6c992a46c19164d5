"""The session and the jobs of the tests on Spark, and S3 servers."""

from jobs.fixtures import job, spark
from servers.s3 import ministack, ministack_bucket, moto, moto_bucket

__all__ = ["job", "ministack", "ministack_bucket", "moto", "moto_bucket", "spark"]
