"""S3 operations of requests."""

from collections.abc import Callable

from holdfast.errors import InvalidRequestError
from holdfast.testing.http.http_proxy import HttpRequest

_BY_PARAMETER = {
    "uploadId": {
        "PUT": "UploadPart",
        "POST": "CompleteMultipartUpload",
        "DELETE": "AbortMultipartUpload",
        "GET": "ListParts",
    },
    "uploads": {"POST": "CreateMultipartUpload", "GET": "ListMultipartUploads"},
    "delete": {"POST": "DeleteObjects"},
    "versions": {"GET": "ListObjectVersions"},
    "versioning": {"GET": "GetBucketVersioning", "PUT": "PutBucketVersioning"},
    "list-type": {"GET": "ListObjectsV2"},
}
"""Operations by their distinctive query parameter, then by method."""

_COPIES = {"UploadPart": "UploadPartCopy", "PutObject": "CopyObject"}

_PLAIN = {
    "Object": {"PUT": "PutObject", "GET": "GetObject", "HEAD": "HeadObject"},
    "Bucket": {"PUT": "CreateBucket", "GET": "GetBucket", "HEAD": "HeadBucket"},
}

S3_OPERATIONS = frozenset(
    {
        *(name for methods in _BY_PARAMETER.values() for name in methods.values()),
        *(name for methods in _PLAIN.values() for name in methods.values()),
        *_COPIES.values(),
        "DeleteObject",
        "DeleteBucket",
    }
)
"""Names of the distinguishable operations."""


def s3_operation_of(request: HttpRequest) -> str:
    """Return the S3 operation of a request, such as `UploadPart`; paths have the form `/bucket/key`."""
    thing = "Object" if request.path.strip("/").partition("/")[2] else "Bucket"
    kind = next((name for name in _BY_PARAMETER if name in request.query), "")
    names = _BY_PARAMETER[kind] if kind else _PLAIN[thing]
    name = names.get(request.method, "?" if kind else request.method.capitalize() + thing)
    return _COPIES.get(name, name) if "x-amz-copy-source" in request.headers else name


def s3_operation(name: str) -> Callable[[HttpRequest], bool]:
    """Return a matcher of an S3 operation's requests, for `HttpFaults`.

    Raises:
        InvalidRequestError: The operation is unknown.
    """
    if name not in S3_OPERATIONS:
        raise InvalidRequestError(
            f"operation must be one of {', '.join(sorted(S3_OPERATIONS))}, got {name!r}"
        )
    return lambda request: s3_operation_of(request) == name
