"""Google's XML API in memory: the operations that tests need, which are those of S3 under Google's names.

    PUT, GET, HEAD, DELETE /bucket/key           x-goog-if-generation-match: 0 instead of If-None-Match: *
    POST, PUT, DELETE      /bucket/key?uploadId   uploads in parts
    GET                    /bucket?list-type=2

It answers like Cloud Storage according to its documentation. No emulator of it has conditions on this API, which obstore uses:
fake-gcs-server has them only on the JSON API.
"""

from dataclasses import replace

from servers.memory_s3 import Answer, MemoryS3

from holdfast.testing import HttpRequest

_GOOGLE, _AMAZON = "x-goog-meta-", "x-amz-meta-"


class MemoryGcs(MemoryS3):
    """A store of buckets; threads may share it, and each request is atomic."""

    def answer(self, request: HttpRequest, body: bytes) -> Answer:
        headers = {
            name.replace(_GOOGLE, _AMAZON): text
            for name, text in request.headers.items()
            if name != "content-md5"  # Google's is of a part, and its encoding differs
        }
        if "x-goog-copy-source" in headers:
            headers["x-amz-copy-source"] = headers.pop("x-goog-copy-source")
        if headers.pop("x-goog-if-generation-match", None) == "0":
            headers["if-none-match"] = "*"
        if request.method == "DELETE" and not request.query:
            bucket, _, key = request.path[1:].partition("/")
            if key not in self.keys(bucket, key):  # S3 does not report it
                return super().answer(replace(request, method="GET", headers={}), b"")
        answer = super().answer(replace(request, headers=headers), body)
        return replace(
            answer,
            headers={name.replace(_AMAZON, _GOOGLE): text for name, text in answer.headers.items()},
        )
