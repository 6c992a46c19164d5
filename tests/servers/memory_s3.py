"""S3 in memory: the operations that tests need, with conditions and checksums.

    PUT, GET, HEAD, DELETE /bucket/key          copies, If-Match, If-None-Match, Range, checksums, versions
    POST, PUT, DELETE      /bucket/key?uploadId  uploads in parts
    GET                    /bucket?list-type=2, ?uploads, ?versions
    POST                   /bucket?delete        a thousand keys at a time

It answers like S3 according to its manual, where MinIO, versitygw, ministack and moto agree; the
contracts run on all of them too. It answers unknown requests with 501.
"""

import base64
import hashlib
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from urllib.parse import quote, unquote
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape
from zlib import crc32

from awscrt.checksums import crc32c

from holdfast.testing import HttpRequest, s3_operation_of

_PAGE = 1000
"""Maximum number of entries in a page of a listing, and of keys in a bulk deletion."""

_CHECKSUMS: dict[str, Callable[[bytes], bytes]] = {
    "x-amz-checksum-crc32c": lambda body: crc32c(body).to_bytes(4),
    "x-amz-checksum-crc32": lambda body: crc32(body).to_bytes(4),
}

_STORED_HEADERS = (
    "x-amz-meta-",
    "x-amz-storage-class",
    "x-amz-server-side-encryption",
    "content-type",
)
"""Prefixes of the headers that are stored with an object and returned with it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request."""

    status: int = 200
    body: bytes | memoryview = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class _Refusal(Exception):  # noqa: N818  # an answer
    def __init__(self, status: int, code: str, **headers: str) -> None:
        super().__init__(code)
        body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
        self.answer = Answer(status, body.encode(), {"Content-Type": "application/xml", **headers})


@dataclass(frozen=True, slots=True)
class _Version:
    """A version of an object, or a delete marker, which has no data."""

    data: bytes | None
    etag: str
    headers: Mapping[str, str]
    id: str
    modified: datetime


@dataclass(slots=True)
class _Upload:
    key: str
    headers: Mapping[str, str]
    started: datetime
    parts: dict[int, tuple[bytes, str]] = field(default_factory=dict)


@dataclass(slots=True)
class _Bucket:
    objects: dict[str, list[_Version]] = field(default_factory=dict)
    uploads: dict[str, _Upload] = field(default_factory=dict)
    versioning: str = ""

    def current(self, key: str) -> _Version | None:
        """Return the newest version, or None if the object is deleted."""
        versions = self.objects.get(key)
        return versions[-1] if versions and versions[-1].data is not None else None

    def add(self, key: str, version: _Version) -> None:
        kept = self.objects.get(key, []) if self.versioning == "Enabled" else []
        self.objects[key] = [*kept, version]

    def remove(self, key: str, version_id: str | None) -> None:
        if version_id is not None:
            kept = [version for version in self.objects.get(key, ()) if version.id != version_id]
            self.objects[key] = kept
            if not kept:
                del self.objects[key]
        elif self.versioning == "Enabled":
            self.add(key, _Version(None, "", {}, uuid.uuid4().hex, datetime.now(UTC)))
        else:
            self.objects.pop(key, None)


class MemoryS3:
    """A store of buckets; threads may share it, and each request is atomic."""

    def __init__(self) -> None:
        self._buckets: dict[str, _Bucket] = {}
        # The garbage collector may run a finalizer in here, which aborts an upload by a request.
        self._lock = threading.RLock()

    def add_bucket(self, name: str) -> None:
        """Create a bucket without a request."""
        with self._lock:
            self._buckets[name] = _Bucket()

    def drop_bucket(self, name: str) -> None:
        """Delete a bucket and its content."""
        with self._lock:
            self._buckets.pop(name, None)

    def put(self, bucket: str, key: str, data: bytes) -> None:
        """Store an object without a request."""
        with self._lock:
            self._buckets[bucket].add(key, _version(data, {}))

    def age(self, bucket: str, seconds: float) -> None:
        """Make the content of a bucket older."""
        older = timedelta(seconds=seconds)
        with self._lock:
            stored = self._buckets[bucket]
            for key, versions in stored.objects.items():
                stored.objects[key] = [
                    replace(version, modified=version.modified - older) for version in versions
                ]
            for upload in stored.uploads.values():
                upload.started -= older

    def read(self, bucket: str, key: str) -> bytes:
        """Return the content of an object."""
        with self._lock:
            version = self._buckets[bucket].current(key)
        if version is None or version.data is None:
            raise KeyError(key)
        return version.data

    def keys(self, bucket: str, prefix: str) -> list[str]:
        """Return the keys of the objects, sorted."""
        with self._lock:
            stored = self._buckets[bucket]
            keys = [key for key in stored.objects.copy() if stored.current(key) is not None]
        return sorted(key for key in keys if key.startswith(prefix))

    def uploads(self, bucket: str, prefix: str) -> list[tuple[str, str]]:
        """Return key and id of the uploads that are neither completed nor aborted."""
        with self._lock:
            pending = [
                (upload.key, number)
                for number, upload in self._buckets[bucket].uploads.copy().items()
            ]
        return [upload for upload in pending if upload[0].startswith(prefix)]

    def answer(self, request: HttpRequest, body: bytes) -> Answer:
        """Perform a request whose path is of the form `/bucket/key`."""
        name, _, key = request.path[1:].partition("/")
        perform = _OPERATIONS.get(s3_operation_of(request), _refuse)
        try:
            _check(request.headers, body)
            with self._lock:
                return perform(self, _Asked(request, name, key, body))
        except _Refusal as refusal:
            return refusal.answer

    def create_bucket(self, asked: "_Asked") -> Answer:
        if asked.bucket in self._buckets:
            raise _Refusal(409, "BucketAlreadyOwnedByYou")
        self._buckets[asked.bucket] = _Bucket()
        return Answer()

    def delete_bucket(self, asked: "_Asked") -> Answer:
        if self._bucket(asked).objects:
            raise _Refusal(409, "BucketNotEmpty")
        del self._buckets[asked.bucket]
        return Answer(204)

    def head_bucket(self, asked: "_Asked") -> Answer:
        self._bucket(asked)
        return Answer()

    def put_versioning(self, asked: "_Asked") -> Answer:
        self._bucket(asked).versioning = _text(asked.xml, "Status")
        return Answer()

    def get_versioning(self, asked: "_Asked") -> Answer:
        status = self._bucket(asked).versioning
        return _xml("VersioningConfiguration", _element("Status", status) if status else "")

    def order(self, name: str) -> bytes:
        """Return what keys and prefixes are sorted by in a listing."""
        return name.encode()

    def prefixes_of_uploads(self, bucket: str, prefix: str, delimiter: str) -> list[str]:
        """Return the common prefixes that are listed only because of unfinished uploads: none in S3."""
        return []

    def list_objects(self, asked: "_Asked") -> Answer:
        query = asked.request.query
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after", "")
        max_keys = min(int(query.get("max-keys", _PAGE)), _PAGE)
        names: dict[str, _Version | None] = {}
        bucket = self._bucket(asked)
        for key in bucket.objects.copy():
            version = bucket.current(key)
            if version is None or not key.startswith(prefix):
                continue
            end = key.find(delimiter, len(prefix)) if delimiter else -1
            names[key if end < 0 else key[: end + len(delimiter)]] = version if end < 0 else None
        names |= dict.fromkeys(self.prefixes_of_uploads(asked.bucket, prefix, delimiter))
        left = sorted(
            (name for name in names if not after or self.order(name) > self.order(after)),
            key=self.order,
        )
        page, is_truncated, count = left[:max_keys], len(left) > max_keys, min(len(left), max_keys)
        entries = [_entry(asked, name, names[name]) for name in page]
        head = _element("Name", asked.bucket) + _element("KeyCount", str(count))
        head += asked.key_element("Prefix", prefix) + _element("MaxKeys", str(max_keys))
        head += _element("IsTruncated", "true" if is_truncated else "false")
        if "encoding-type" in query:
            head += _element("EncodingType", "url")
        if is_truncated:
            head += _element("NextContinuationToken", page[-1])
        return _xml("ListBucketResult", head + "".join(entries))

    def list_versions(self, asked: "_Asked") -> Answer:
        prefix = asked.request.query.get("prefix", "")
        entries = [
            f"<{kind}>{asked.key_element('Key', key)}<VersionId>{version.id}</VersionId>"
            f"<LastModified>{_iso(version.modified)}</LastModified></{kind}>"
            for key, versions in sorted(self._bucket(asked).objects.copy().items())
            if key.startswith(prefix)
            for version in versions
            for kind in ("Version" if version.data is not None else "DeleteMarker",)
        ]
        return _xml("ListVersionsResult", asked.single_page() + "".join(entries))

    def list_uploads(self, asked: "_Asked") -> Answer:
        prefix = asked.request.query.get("prefix", "")
        entries = [
            f"<Upload>{asked.key_element('Key', upload.key)}<UploadId>{upload_id}</UploadId>"
            f"<Initiated>{_iso(upload.started)}</Initiated></Upload>"
            for upload_id, upload in self._bucket(asked).uploads.copy().items()
            if upload.key.startswith(prefix)
        ]
        return _xml("ListMultipartUploadsResult", asked.single_page() + "".join(entries))

    def put_object(self, asked: "_Asked") -> Answer:
        bucket = self._bucket(asked)
        _check_conditions(asked, bucket)
        version = _version(asked.body, asked.request.headers)
        bucket.add(asked.key, version)
        return Answer(headers={"ETag": version.etag})

    def copy_object(self, asked: "_Asked") -> Answer:
        bucket, _, key = (
            unquote(asked.request.headers["x-amz-copy-source"]).lstrip("/").partition("/")
        )
        source = self._bucket(replace(asked, bucket=bucket)).current(key)
        if source is None or source.data is None:
            raise _Refusal(404, "NoSuchKey")
        version = _version(source.data, {**source.headers, **asked.request.headers})
        self._bucket(asked).add(asked.key, version)
        return _xml("CopyObjectResult", f"<ETag>{escape(version.etag)}</ETag>")

    def get_object(self, asked: "_Asked") -> Answer:
        version = self._bucket(asked).current(asked.key)
        if version is None or version.data is None:
            raise _Refusal(404, "NoSuchKey")
        _check_conditions(asked, self._bucket(asked))
        headers = {
            **version.headers,
            "ETag": version.etag,
            "Last-Modified": format_datetime(version.modified, usegmt=True),
            "Accept-Ranges": "bytes",
        }
        wanted = asked.request.headers.get("range")
        if wanted is None:
            return Answer(200, version.data, headers)
        first, end = _bounds(wanted, len(version.data))
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(version.data)}"
        return Answer(206, memoryview(version.data)[first:end], headers)  # gibibytes without a copy

    def delete_object(self, asked: "_Asked") -> Answer:
        self._bucket(asked).remove(asked.key, asked.request.query.get("versionId"))
        return Answer(204)

    def delete_objects(self, asked: "_Asked") -> Answer:
        bucket = self._bucket(asked)
        objects = list(asked.xml.iter("Object"))
        if len(objects) > _PAGE:
            raise _Refusal(400, "MalformedXML")
        keys = [_text(entry, "Key") for entry in objects]
        for key, entry in zip(keys, objects, strict=True):
            bucket.remove(key, _text(entry, "VersionId") or None)
        is_quiet = _text(asked.xml, "Quiet") == "true"
        deleted = [f"<Deleted>{_element('Key', key)}</Deleted>" for key in keys]
        return _xml("DeleteResult", "" if is_quiet else "".join(deleted))

    def create_upload(self, asked: "_Asked") -> Answer:
        upload_id = uuid.uuid4().hex
        upload = _Upload(asked.key, _stored_headers(asked.request.headers), datetime.now(UTC))
        self._bucket(asked).uploads[upload_id] = upload
        return _xml("InitiateMultipartUploadResult", _element("UploadId", upload_id))

    def upload_part(self, asked: "_Asked") -> Answer:
        etag = _etag(asked.body)
        number = int(asked.request.query["partNumber"])
        self._upload(asked).parts[number] = (asked.body, etag)
        return Answer(headers={"ETag": etag})

    def complete_upload(self, asked: "_Asked") -> Answer:
        bucket, upload = self._bucket(asked), self._upload(asked)
        _check_conditions(asked, bucket)
        data, hashes = bytearray(), b""
        for wanted in asked.xml.iter("Part"):
            body, etag = upload.parts.get(int(_text(wanted, "PartNumber")), (b"", ""))
            if _text(wanted, "ETag").strip('"') != etag.strip('"'):
                raise _Refusal(400, "InvalidPart")
            for header, checksum in _CHECKSUMS.items():
                expected = _text(wanted, f"Checksum{header.rpartition('-')[2].upper()}")
                if expected and base64.b64decode(expected) != checksum(body):
                    raise _Refusal(400, "InvalidPart")
            data += body
            hashes += bytes.fromhex(etag.strip('"'))
        size = asked.request.headers.get("x-amz-mp-object-size")
        if not hashes or (size is not None and int(size) != len(data)):
            raise _Refusal(400, "InvalidRequest")
        count = len(hashes) // 16
        etag = f'"{hashlib.md5(hashes).hexdigest()}-{count}"'
        version = _version(bytes(data), upload.headers, etag)
        bucket.add(asked.key, version)
        del bucket.uploads[asked.request.query["uploadId"]]
        return _xml("CompleteMultipartUploadResult", f"<ETag>{escape(etag)}</ETag>")

    def abort_upload(self, asked: "_Asked") -> Answer:
        self._upload(asked)
        del self._bucket(asked).uploads[asked.request.query["uploadId"]]
        return Answer(204)

    def _bucket(self, asked: "_Asked") -> _Bucket:
        bucket = self._buckets.get(asked.bucket)
        if bucket is None:
            raise _Refusal(404, "NoSuchBucket")
        return bucket

    def _upload(self, asked: "_Asked") -> _Upload:
        upload = self._bucket(asked).uploads.get(asked.request.query["uploadId"])
        if upload is None or upload.key != asked.key:
            raise _Refusal(404, "NoSuchUpload")
        return upload


def _refuse(_: MemoryS3, __: "_Asked") -> Answer:
    raise _Refusal(501, "NotImplemented")


_OPERATIONS: dict[str, Callable[[MemoryS3, "_Asked"], Answer]] = {
    "CreateBucket": MemoryS3.create_bucket,
    "DeleteBucket": MemoryS3.delete_bucket,
    "HeadBucket": MemoryS3.head_bucket,
    "PutBucketVersioning": MemoryS3.put_versioning,
    "GetBucketVersioning": MemoryS3.get_versioning,
    "ListObjectsV2": MemoryS3.list_objects,
    "ListObjectVersions": MemoryS3.list_versions,
    "ListMultipartUploads": MemoryS3.list_uploads,
    "PutObject": MemoryS3.put_object,
    "CopyObject": MemoryS3.copy_object,
    "GetObject": MemoryS3.get_object,
    "HeadObject": MemoryS3.get_object,
    "DeleteObject": MemoryS3.delete_object,
    "DeleteObjects": MemoryS3.delete_objects,
    "CreateMultipartUpload": MemoryS3.create_upload,
    "UploadPart": MemoryS3.upload_part,
    "CompleteMultipartUpload": MemoryS3.complete_upload,
    "AbortMultipartUpload": MemoryS3.abort_upload,
}


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request, with its bucket, key and body."""

    request: HttpRequest
    bucket: str
    key: str
    body: bytes

    @property
    def xml(self) -> ET.Element:
        """The elements of the body, without their namespaces."""
        try:
            root = ET.fromstring(self.body)
        except ET.ParseError as error:
            raise _Refusal(400, "MalformedXML") from error
        for element in root.iter():
            element.tag = element.tag.rpartition("}")[2]
        return root

    def key_element(self, tag: str, name: str) -> str:
        """Return an element with a key in the requested encoding."""
        is_quoted = "encoding-type" in self.request.query
        return _element(tag, quote(name, safe="/") if is_quoted else name)

    def single_page(self) -> str:
        """Return the elements of a listing with a single page."""
        is_quoted = "encoding-type" in self.request.query
        truncated = _element("IsTruncated", "false")
        return truncated + (_element("EncodingType", "url") if is_quoted else "")


def _entry(asked: _Asked, name: str, version: _Version | None) -> str:
    """Return the element of an object in a listing, or that of a common prefix, which has no version."""
    if version is None:
        return f"<CommonPrefixes>{asked.key_element('Prefix', name)}</CommonPrefixes>"
    return (
        f"<Contents>{asked.key_element('Key', name)}"
        f"<LastModified>{_iso(version.modified)}</LastModified>"
        f"<ETag>{escape(version.etag)}</ETag><Size>{len(version.data or b'')}</Size>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
    )


def _check(headers: Mapping[str, str], body: bytes) -> None:
    """Refuse a body that does not match the checksums in the headers."""
    if "aws-chunked" in headers.get("content-encoding", ""):
        raise _Refusal(501, "NotImplemented")
    for name, checksum in _CHECKSUMS.items():
        if name in headers and base64.b64decode(headers[name]) != checksum(body):
            raise _Refusal(400, "BadDigest")
    md5 = headers.get("content-md5")
    if md5 is not None and base64.b64decode(md5) != hashlib.md5(body).digest():
        raise _Refusal(400, "BadDigest")
    signed = headers.get("x-amz-content-sha256", "")
    if len(signed) == 64 and hashlib.sha256(body).hexdigest() != signed:
        raise _Refusal(400, "XAmzContentSHA256Mismatch")


def _check_conditions(asked: _Asked, bucket: _Bucket) -> None:
    headers = asked.request.headers
    current = bucket.current(asked.key)
    if headers.get("if-none-match") == "*" and current is not None:
        raise _Refusal(412, "PreconditionFailed")
    wanted = headers.get("if-match")
    if wanted is not None and (current is None or current.etag.strip('"') != wanted.strip('"')):
        raise _Refusal(412 if current else 404, "PreconditionFailed" if current else "NoSuchKey")


def _bounds(wanted: str, size: int) -> tuple[int, int]:
    """Return start and end of the bytes in a range."""
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    if not first:
        return max(0, size - int(last)), size
    end = min(size, int(last) + 1) if last else size
    if int(first) >= size:
        raise _Refusal(416, "InvalidRange", **{"Content-Range": f"bytes */{size}"})
    return int(first), end


def _version(data: bytes, headers: Mapping[str, str], etag: str | None = None) -> _Version:
    now = datetime.now(UTC)
    return _Version(data, etag or _etag(data), _stored_headers(headers), uuid.uuid4().hex, now)


def _stored_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.startswith(_STORED_HEADERS)}


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


def _iso(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _text(element: ET.Element, tag: str) -> str:
    return element.findtext(tag) or ""


def _element(tag: str, text: str) -> str:
    # A parser would replace \r, which is a line end, by \n.
    return f"<{tag}>{escape(text, {chr(13): '&#13;'})}</{tag}>"


def _xml(root: str, inner: str) -> Answer:
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<{root}>{inner}</{root}>'
    return Answer(200, body.encode(), {"Content-Type": "application/xml"})
