"""Directories with checkpoints, and S3 servers."""

from jobs.kept import kept
from jobs.stopped import as_without_spark, directory, stopped
from servers.buckets import memory_bucket, memory_s3

__all__ = ["as_without_spark", "directory", "kept", "memory_bucket", "memory_s3", "stopped"]
