"""Directory buckets of S3 Express One Zone in memory, where they differ from other buckets of S3.

No emulator knows them: neither MinIO, versitygw, moto nor ministack. This is written after AWS's documentation
(Differences for directory buckets, and the operations in the API reference):

- A request needs the token of a session, which `GET /bucket?session` returns; except for copies, which are signed by the
  credentials themselves.
- Listings are in no order; their prefixes end in `/`, which is the only delimiter. They include prefixes that have only
  unfinished uploads, and don't know `start-after`.
- Parts are numbered from 1 without gaps. A bulk deletion needs a checksum.
- There is one storage class, and neither versions nor requesters that pay.
"""

import hashlib
import uuid
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree as ET

from servers.memory_s3 import Answer, MemoryS3

from holdfast.testing import HttpRequest, s3_operation_of

STORAGE_CLASS = "EXPRESS_ONEZONE"

_UNSUPPORTED_HEADERS = {"x-amz-request-payer", "content-md5", "x-amz-tagging", "x-amz-acl"}


class MemoryDirectoryBuckets(MemoryS3):
    """A store of directory buckets.

    Attributes:
        sessions: Number of sessions that were created.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sessions = 0
        self._tokens: set[str] = set()

    def answer(self, request: HttpRequest, body: bytes) -> Answer:
        if "session" in request.query:
            return self._create_session()
        complaint = self._complaint(request, body)
        if complaint:
            xml = f"<Error><Code>{complaint}</Code><Message>{complaint}</Message></Error>"
            status = 403 if complaint == "AccessDenied" else 400
            return Answer(status, xml.encode(), {"Content-Type": "application/xml"})
        return super().answer(request, body)

    def order(self, name: str) -> bytes:
        return hashlib.md5(name.encode()).digest()

    def prefixes_of_uploads(self, bucket: str, prefix: str, delimiter: str) -> list[str]:
        rest = [key.removeprefix(prefix) for key, _ in self.uploads(bucket, prefix)]
        return [prefix + key.partition(delimiter)[0] + "/" for key in rest if delimiter in key]

    def _create_session(self) -> Answer:
        self.sessions += 1
        token = uuid.uuid4().hex
        self._tokens.add(token)
        end = (datetime.now(UTC) + timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
        xml = (
            "<CreateSessionResult><Credentials>"
            f"<SessionToken>{token}</SessionToken><SecretAccessKey>secret</SecretAccessKey>"
            f"<AccessKeyId>key</AccessKeyId><Expiration>{end}</Expiration>"
            "</Credentials></CreateSessionResult>"
        )
        return Answer(200, xml.encode(), {"Content-Type": "application/xml"})

    def _complaint(self, request: HttpRequest, body: bytes) -> str:
        """Return the code of a refusal, or an empty string."""
        query, headers = request.query, request.headers
        is_copy = s3_operation_of(request) == "CopyObject"
        if not is_copy and headers.get("x-amz-s3session-token") not in self._tokens:
            return "AccessDenied"
        if _UNSUPPORTED_HEADERS & headers.keys() or "versionId" in query or "versioning" in query:
            return "NotImplemented"
        if headers.get("x-amz-storage-class", STORAGE_CLASS) != STORAGE_CLASS:
            return "InvalidStorageClass"
        if "list-type" in query or "uploads" in query:
            is_valid = (
                query.get("prefix", "/")[-1:] in ("", "/") and query.get("delimiter", "/") == "/"
            )
            return (
                ""
                if is_valid and not {"start-after", "upload-id-marker"} & query.keys()
                else "InvalidRequest"
            )
        if "delete" in query and not any(name.startswith("x-amz-checksum-") for name in headers):
            return "InvalidRequest"
        if s3_operation_of(request) == "CompleteMultipartUpload":
            numbers = [
                int(each.text or "")
                for each in ET.fromstring(body).iter()
                if each.tag.endswith("PartNumber")
            ]
            return "" if numbers == list(range(1, len(numbers) + 1)) else "InvalidPartOrder"
        return ""
