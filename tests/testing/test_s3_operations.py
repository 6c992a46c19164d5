import pytest

from holdfast.errors import InvalidRequestError
from holdfast.testing import S3_OPERATIONS, HttpRequest, s3_operation, s3_operation_of

COPY = {"x-amz-copy-source": "bucket/other"}


@pytest.mark.parametrize(
    ("name", "method", "path", "query", "headers"),
    [
        ("PutObject", "PUT", "/bucket/key", {}, {}),
        ("CopyObject", "PUT", "/bucket/key", {}, COPY),
        ("DeleteObject", "DELETE", "/bucket/key/", {}, {}),
        ("DeleteObjects", "POST", "/bucket/", {"delete": ""}, {}),
        ("CreateBucket", "PUT", "/bucket/", {}, {}),
        ("ListObjectsV2", "GET", "/bucket", {"list-type": "2", "prefix": "uploads"}, {}),
        ("CreateMultipartUpload", "POST", "/bucket/key", {"uploads": ""}, {}),
        ("UploadPart", "PUT", "/bucket/key", {"uploadId": "1", "partNumber": "1"}, {}),
        ("UploadPartCopy", "PUT", "/bucket/key", {"uploadId": "1", "partNumber": "1"}, COPY),
        ("CompleteMultipartUpload", "POST", "/bucket/key", {"uploadId": "1"}, {}),
    ],
)
def test_request_has_the_name_of_its_s3_operation(
    name: str, method: str, path: str, query: dict[str, str], headers: dict[str, str]
) -> None:
    request = HttpRequest(method, path, query, headers)
    assert s3_operation_of(request) == name
    assert [operation for operation in S3_OPERATIONS if s3_operation(operation)(request)] == [name]


def test_unknown_operation_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="got 'PutObjekt'"):
        s3_operation("PutObjekt")
