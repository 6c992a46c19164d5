"""Writing an object of unknown length: one PUT while it is small, else parts sent as they fill."""

import base64
import logging
import struct
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageFullError,
    StorageUnavailableError,
    StreamClosedError,
)
from holdfast.locations._crc32c import crc32c
from holdfast.locations.file_systems._port import BytesLike
from holdfast.locations.file_systems._retries import Retrier, retry_deadline
from holdfast.locations.file_systems._s3._errors import changed_nothing, translated
from holdfast.locations.file_systems._s3._settings import S3Settings

_log = logging.getLogger(__name__)

_OWNER = "holdfast-owner"

_MOST_PARTS = 10_000
_GROWS_EVERY = 1_000
"""Parts after which they double: 8 MiB parts reach 8 TiB then, beyond S3's own limit."""

_ABORT_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class S3Object:
    """Where an object is, and by what to reach it."""

    client: Any
    settings: S3Settings
    retrier: Retrier
    uri: str
    bucket: str
    key: str

    def request(self, name: str, **parameters: Any) -> Any:
        """One request about the object; errors are ours."""
        with translated(self.uri):
            return getattr(self.client, name)(
                Bucket=self.bucket, Key=self.key, **parameters, **self.settings.for_all()
            )

    def repeated(self, name: str, **parameters: Any) -> Any:
        """The same, repeated while it fails in a way that changes nothing or may be repeated."""
        return self.retrier.call(name, lambda: self.request(name, **parameters))

    def made(self, name: str, token: str, **parameters: Any) -> None:
        """The same for a request that makes the object, only if its name is free.

        Args:
            name: The request.
            token: What the object's metadata will say, so that it is known for ours.
            parameters: The request's.

        Raises:
            CheckpointConflictError: The name is taken.
            OutcomeUnknownError: S3 did not say whether it was made.
        """
        may_be_there = False

        def attempt() -> None:
            nonlocal may_be_there
            try:
                self.request(name, IfNoneMatch="*", **parameters)
            except StorageFullError:
                raise
            except StorageUnavailableError as error:
                may_be_there = may_be_there or not changed_nothing(error)
                raise
            except (CheckpointConflictError, CheckpointNotFoundError):
                # An attempt whose answer was lost has made it: the name is taken by it, or the
                # upload that it completed is gone.
                if not may_be_there or self.owner() != token:
                    raise

        try:
            self.retrier.call(name, attempt)
        except CheckpointConflictError:
            raise  # somebody else's was there first
        except CheckpointError as error:
            if not may_be_there:
                raise
            message = "S3 did not say whether the file was written"
            raise OutcomeUnknownError(message, self.uri) from error

    def owner(self) -> str | None:
        """The token of the stream that made the object; None if there is none."""
        try:
            found = self.request("head_object")
        except CheckpointNotFoundError:
            return None
        token: str | None = found.get("Metadata", {}).get(_OWNER)
        return token


class S3OutputStream:
    """An object that appears when it is committed, and not before."""

    def __init__(self, target: S3Object) -> None:
        self._target = target
        self._token = uuid.uuid4().hex
        self._part = bytearray()
        self._part_bytes = target.settings.part_bytes
        self._size = 0
        self._upload: _MultipartUpload | None = None
        self._lock = threading.Lock()  # held for moments only: `abort` waits for no request
        self._is_finished = False

    def write(self, data: BytesLike, /) -> None:
        self._check_unfinished()
        left = memoryview(data).cast("B")
        while left:
            taken = left[: self._part_bytes - len(self._part)]
            self._part += taken
            left = left[len(taken) :]
            if len(self._part) == self._part_bytes:
                self._send_part()

    def sync(self) -> None:
        """Nothing lasts in S3 before it is committed."""
        self._check_unfinished()

    def commit(self, *, durable_name: bool = True) -> None:  # noqa: ARG002  # every name lasts
        self._check_unfinished()
        try:
            if self._upload is None:
                self._put()
            else:
                if self._part:
                    self._send_part()
                self._upload.complete(self._size)
        except BaseException as error:
            self.abort()
            if isinstance(error, OutcomeUnknownError):
                self._take_back()
            raise
        with self._lock:
            was_aborted, self._is_finished = self._is_finished, True
            self._upload = None
        if was_aborted:
            self._take_back()
            raise StreamClosedError("stream was discarded", self._target.uri)

    def _take_back(self) -> None:
        """Delete what may have been written all the same; nobody knows its name."""
        with suppress(CheckpointError), retry_deadline(_ABORT_DEADLINE_S):
            if self._target.owner() == self._token:
                self._target.repeated("delete_object")

    def __del__(self) -> None:
        if not getattr(self, "_is_finished", True):
            self.abort()

    def abort(self) -> None:
        with self._lock:
            self._is_finished = True
            upload = self._upload
        if upload is not None:
            upload.abort()

    def _put(self) -> None:
        self._target.made(
            "put_object",
            self._token,
            Body=self._part,
            Metadata={_OWNER: self._token},
            **checksum_of(self._part, self._target.settings),
            **self._target.settings.for_writing(),
        )

    def _send_part(self) -> None:
        if self._upload is None:
            upload = _MultipartUpload(self._target, self._token)
            with self._lock:
                self._upload, was_aborted = upload, self._is_finished
            if was_aborted:  # by another thread, which saw no upload
                upload.abort()
                raise StreamClosedError("stream was discarded", self._target.uri)
        part, self._part = self._part, bytearray()
        self._size += len(part)
        self._upload.send(part)
        if self._upload.count % _GROWS_EVERY == 0:
            self._part_bytes *= 2

    def _check_unfinished(self) -> None:
        if self._is_finished:
            raise StreamClosedError("stream is finished or discarded", self._target.uri)


class _MultipartUpload:
    """Parts on their way, a few at a time."""

    def __init__(self, target: S3Object, token: str) -> None:
        self._target = target
        self._token = token
        algorithm = _ALGORITHMS.get(target.settings.checksum)
        parameters: dict[str, Any] = {"ChecksumAlgorithm": algorithm} if algorithm else {}
        parameters["Metadata"] = {_OWNER: token}
        self._id = ""
        self._begun = 0
        self._id = self._begin({**parameters, **target.settings.for_writing()})
        self._pool = ThreadPoolExecutor(
            target.settings.concurrency, thread_name_prefix="holdfast-s3-part"
        )
        self._room = threading.BoundedSemaphore(target.settings.concurrency)
        self._parts: list[Future[dict[str, Any]]] = []
        self._failure: BaseException | None = None
        self._is_aborted = False

    @property
    def count(self) -> int:
        """Number of parts so far."""
        return len(self._parts)

    def send(self, part: bytearray) -> None:
        """Send the next part; waits while as many as may be are on their way."""
        if self.count == _MOST_PARTS:
            raise InvalidRequestError(f"file has more than {_MOST_PARTS} parts", self._target.uri)
        self._room.acquire()
        try:
            self._check()
            sent = self._pool.submit(self._upload, self.count + 1, part)
        except BaseException as error:
            self._room.release()
            if isinstance(error, RuntimeError):  # the pool was shut down by `abort`
                raise StreamClosedError("stream was discarded", self._target.uri) from error
            raise
        self._parts.append(sent)
        sent.add_done_callback(self._note)

    def _begin(self, parameters: dict[str, Any]) -> str:
        def attempt() -> str:
            self._begun += 1
            answer = self._target.request("create_multipart_upload", **parameters)
            return str(answer["UploadId"])

        try:
            return self._target.retrier.call("create_multipart_upload", attempt)
        except CheckpointError:
            self._abort_twins()
            raise

    def _abort_twins(self) -> None:
        """Give up uploads that were begun for this file, and of which the answer got lost."""
        target = self._target
        with suppress(CheckpointError), translated(target.uri):
            answer = target.client.list_multipart_uploads(
                Bucket=target.bucket, Prefix=target.key, **target.settings.for_all()
            )
            for one in answer.get("Uploads", ()):
                if one["Key"] == target.key and one["UploadId"] != self._id:
                    target.request("abort_multipart_upload", UploadId=one["UploadId"])

    def complete(self, size: int) -> None:
        """Make the object of the parts, once they are there."""
        wait(self._parts)
        self._check()
        parts = [one.result() for one in self._parts]
        self._pool.shutdown(wait=False)
        try:
            self._target.made(
                "complete_multipart_upload",
                self._token,
                UploadId=self._id,
                MultipartUpload={"Parts": parts},
                MpuObjectSize=size,
            )
        except CheckpointNotFoundError as error:
            self._check()
            message = "S3 has forgotten the upload of this file"
            raise StorageUnavailableError(message, self._target.uri) from error
        if self._begun > 1:
            self._abort_twins()

    def abort(self) -> None:
        """Leave no part behind; never raises, and waits for no part that is on its way."""
        self._is_aborted = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._abort_once()
        if self._begun > 1:
            self._abort_twins()

    def _check(self) -> None:
        if self._is_aborted:
            raise StreamClosedError("stream was discarded", self._target.uri)
        if self._failure is not None:
            raise self._failure

    def _note(self, part: Future[dict[str, Any]]) -> None:
        self._room.release()
        if not part.cancelled() and part.exception() is not None:
            self._failure = self._failure or part.exception()

    def _abort_once(self) -> None:
        try:
            with retry_deadline(_ABORT_DEADLINE_S):
                self._target.repeated("abort_multipart_upload", UploadId=self._id)
        except CheckpointNotFoundError:
            pass
        except CheckpointError:
            _log.warning(
                "could not abort upload %s; a sweep will: %s",
                self._id,
                self._target.uri,
                exc_info=True,
            )

    def _upload(self, number: int, part: bytearray) -> dict[str, Any]:
        checksum = checksum_of(part, self._target.settings)

        def attempt() -> Any:
            if self._is_aborted:
                raise StreamClosedError("stream was discarded", self._target.uri)
            return self._target.request(
                "upload_part", UploadId=self._id, PartNumber=number, Body=part, **checksum
            )

        try:
            answer = self._target.retrier.call("upload_part", attempt)
        finally:
            if self._is_aborted:
                self._abort_once()  # a part that arrives after an abort would stay
        return {"PartNumber": number, "ETag": answer["ETag"], **checksum}


_ALGORITHMS = {"crc32c": "CRC32C", "crc32": "CRC32"}
_SUMS: dict[str, Callable[[Any], int]] = {"crc32c": crc32c, "crc32": crc32}


def checksum_of(data: BytesLike, settings: S3Settings) -> dict[str, str]:
    """The parameter by which the store checks a body."""
    if settings.checksum == "off":
        return {}
    total = _SUMS[settings.checksum](data)
    encoded = base64.b64encode(struct.pack(">I", total)).decode()
    return {f"Checksum{_ALGORITHMS[settings.checksum]}": encoded}
