"""Directories with checkpoints, and S3 servers."""

from jobs.stopped_query import as_without_spark, directory, stopped_query
from jobs.stores import store
from servers.buckets import memory_bucket, memory_s3

__all__ = ["as_without_spark", "directory", "memory_bucket", "memory_s3", "stopped_query", "store"]
