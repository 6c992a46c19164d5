"""A proxy for a store's server that makes requests fail on demand."""

from holdfast.testing.http.http_proxy import HttpFaults, HttpRequest, http_faults
from holdfast.testing.http.s3_operations import S3_OPERATIONS, s3_operation, s3_operation_of

__all__ = [
    "S3_OPERATIONS",
    "HttpFaults",
    "HttpRequest",
    "http_faults",
    "s3_operation",
    "s3_operation_of",
]
