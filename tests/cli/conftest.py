"""S3 servers, and a process without Spark."""

from jobs.stopped import as_without_spark
from servers.s3 import moto, moto_bucket

__all__ = ["as_without_spark", "moto", "moto_bucket"]
