"""S3 for the tests of locations."""

from contracts.s3_faults import (
    in_process_faults,
    memory_faults,
    ministack_faults,
    moto_faults,
    store,
)
from servers.buckets import memory_bucket, memory_s3, s3_bucket
from servers.s3 import ministack, ministack_bucket, moto, moto_bucket
from servers.watched import bucket, watched_bucket, watched_over_http
