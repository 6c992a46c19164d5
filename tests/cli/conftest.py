"""Directories with checkpoints, and S3 servers."""

from jobs.kept import kept
from jobs.stopped import as_without_spark, directory, stopped
from servers.s3 import moto, moto_bucket

__all__ = ["as_without_spark", "directory", "kept", "moto", "moto_bucket", "stopped"]
