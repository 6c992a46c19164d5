"""S3 servers for the tests of locations."""

from servers.s3 import ministack, ministack_bucket, moto, moto_bucket, s3_bucket

__all__ = ["ministack", "ministack_bucket", "moto", "moto_bucket", "s3_bucket"]
