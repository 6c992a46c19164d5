"""S3 servers for the tests of locations."""

from servers.s3 import ministack, ministack_bucket, moto, moto_bucket, s3_bucket
from servers.watched import bucket, watched

__all__ = [
    "bucket",
    "ministack",
    "ministack_bucket",
    "moto",
    "moto_bucket",
    "s3_bucket",
    "watched",
]
