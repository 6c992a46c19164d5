"""Objects in S3: input from any position, and output by one PUT if it is small, otherwise in parts."""

import logging
import os
import threading
import uuid
from concurrent.futures import CancelledError, Future
from contextlib import closing, suppress
from functools import partial
from typing import Any

from holdfast.common import ContextPool, raise_shortage
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointCorruptedError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageUnavailableError,
    StreamClosedError,
)
from holdfast.locations.file_systems.obstore_bucket import PutOutcome
from holdfast.locations.file_systems.port import BytesLike, PositionedInputStream
from holdfast.locations.file_systems.retrying import ABORT_DEADLINE_S, retry_deadline
from holdfast.locations.file_systems.s3_client import is_directory_bucket
from holdfast.locations.file_systems.s3_object import (
    ALGORITHMS,
    OWNER_METADATA,
    S3Object,
    checksum_of,
    code_of,
    map_errors,
)

_log = logging.getLogger(__name__)

SKIPPED_BYTES = 256 << 10
"""A gap up to this size is read and discarded instead of sending a new request."""


class S3InputStream(PositionedInputStream):
    """An object that is read with one request as long as reads are sequential.

    A read elsewhere sends another request, which must find the same object. With obstore, the first
    request reads only the head of the object.
    """

    def __init__(self, target: S3Object) -> None:
        self._target = target
        self._uri = target.uri
        self._body: Any = None
        self._body_position = 0
        self._head = memoryview(b"")
        obstore = target.obstore
        if obstore is not None and (head := obstore.head(target.key)):
            self._head, self._size, self._etag = head.data, head.size, head.etag
            return
        answer = target.request("get_object")
        if "ETag" not in answer:
            raise StorageUnavailableError("S3's answer is not an object", target.uri)
        self._body = answer["Body"]
        self._size = int(answer["ContentLength"])
        self._etag = str(answer["ETag"])

    def _fill(self, view: memoryview) -> int:
        data = self._head[self._position : self._position + len(view)]
        if not data:
            self._head = data  # releases the memory
            try:
                self._go_to_position()
                data = self._read(len(view))
                self._body_position += len(data)
            except BaseException:
                self._forget_body()  # its position is unknown after an interrupt
                raise
        if not data:
            message = f"object ended at byte {self._position} of {self._size}"
            raise StorageUnavailableError(message, self._target.uri)
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._forget_body()
        super().close()

    def _go_to_position(self) -> None:
        gap = self._position - self._body_position
        if self._body is not None and 0 <= gap <= SKIPPED_BYTES:
            while gap and (skipped := self._read(gap)):
                gap -= len(skipped)
            self._body_position = self._position - gap
        if self._body is None or self._body_position != self._position:
            self._forget_body()
            self._body = self._body_from(self._position)
            self._body_position = self._position

    def _body_from(self, position: int) -> Any:
        try:
            answer = self._target.request(
                "get_object", Range=f"bytes={position}-", IfMatch=self._etag
            )
        except CheckpointConflictError as error:
            message = "object was replaced while it was being read"
            raise CheckpointCorruptedError(message, self._target.uri) from error
        if position and "ContentRange" not in answer:
            answer["Body"].close()
            raise InvalidRequestError("store does not support range requests", self._target.uri)
        return answer["Body"]

    def _read(self, length: int) -> memoryview:
        return _read_body(self._body, length, self._target.uri)

    def _forget_body(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            body.close()


def read_range(target: S3Object, start: int, end: int) -> memoryview:
    """Return the bytes of an object from `start` up to `end`; fewer if it ends before."""
    try:
        answer = target.request("get_object", Range=f"bytes={start}-{end - 1}")
    except InvalidRequestError as error:
        if code_of(error) == "InvalidRange":
            return memoryview(b"")
        raise
    with closing(answer["Body"]) as body:
        if "ContentRange" not in answer:
            raise InvalidRequestError("store does not support range requests", target.uri)
        return _read_body(body, None, target.uri)


def _read_body(body: Any, length: int | None, uri: str) -> memoryview:
    """Read bytes of an answer; all of them if there is no length."""
    try:
        return memoryview(body.read(length))
    except Exception as error:  # urllib3's and botocore's: the connection is lost
        message = f"S3's answer ended early ({type(error).__name__})"
        raise StorageUnavailableError(message, uri) from error


class S3OutputStream:
    """An object that does not exist before it is committed."""

    def __init__(self, target: S3Object) -> None:
        self._target = target
        self._token = uuid.uuid4().hex
        self._head = bytearray()
        self._upload: MultipartUpload | None = None
        self._lock = threading.Lock()  # never held during a request, because `abort` must not wait
        self._process = os.getpid()
        self._is_finished = False

    def write(self, data: BytesLike, /) -> None:
        self._check_unfinished()
        try:
            self._append(memoryview(data).cast("B"))
        except BaseException:
            self.abort()  # an incomplete object must not be committed
            raise

    def _append(self, left: memoryview) -> None:
        if self._upload is None:
            room = self._target.settings.part_size - len(self._head)
            self._head += left[:room]
            left = left[room:]
            if len(self._head) < self._target.settings.part_size:
                return
            self._begin_upload()
        if left and self._upload is not None:
            self._upload.write(left)

    def sync(self) -> None:
        """Do nothing: an object is durable once it is committed."""
        self._check_unfinished()

    def commit(self, *, durable_name: bool = True) -> None:  # noqa: ARG002  # names are always durable
        self._check_unfinished()
        try:
            if self._upload is None:
                self._put()
            else:
                self._upload.complete()
        except BaseException as error:
            self.abort()
            if isinstance(error, OutcomeUnknownError):
                self._delete_written_object()
            raise
        with self._lock:
            was_aborted, self._is_finished = self._is_finished, True
            self._upload = None
        if was_aborted:
            self._delete_written_object()
            raise StreamClosedError("stream was discarded", self._target.uri)

    def _delete_written_object(self) -> None:
        """Delete the object, which may have been written despite the error; its name was not passed on."""
        with suppress(CheckpointError), retry_deadline(ABORT_DEADLINE_S):
            etag = self._target.version_of(self._token)
            if etag is None:
                return
            try:
                self._target.request_with_retries("delete_object", IfMatch=etag)
            except InvalidRequestError:  # the store does not support conditional deletions
                self._target.request_with_retries("delete_object")

    def __del__(self) -> None:
        if not getattr(self, "_is_finished", True):
            self.abort()

    def abort(self) -> None:
        if self._process != os.getpid():
            return  # a fork must not delete its parent's file
        with self._lock:
            was_finished, self._is_finished = self._is_finished, True
            upload = self._upload
        if upload is not None and not was_finished:
            upload.abort()

    def _put(self) -> None:
        outcome, metadata = PutOutcome.NOT_DONE, {OWNER_METADATA: self._token}
        if self._target.obstore is not None:
            outcome = self._target.obstore.put(self._target.key, self._head, metadata)
        if outcome is PutOutcome.DONE:
            return
        self._target.create(
            "put_object",
            self._token,
            may_be_there=outcome is PutOutcome.UNKNOWN,
            Body=self._head,
            Metadata=metadata,
            **checksum_of(self._head, self._target.settings),
            **self._target.settings.write_parameters(),
        )

    def _begin_upload(self) -> None:
        upload = MultipartUpload(self._target, self._token)
        with self._lock:
            self._upload, was_aborted = upload, self._is_finished
        if was_aborted:  # by another thread, before the upload existed
            upload.abort()
            raise StreamClosedError("stream was discarded", self._target.uri)
        head, self._head = self._head, bytearray()
        upload.send(head)

    def _check_unfinished(self) -> None:
        if self._is_finished:
            raise StreamClosedError("stream is finished or discarded", self._target.uri)


class MultipartUpload:
    """An upload in parts, several of them at a time."""

    def __init__(self, target: S3Object, token: str) -> None:
        self._target = target
        self._token = token
        algorithm = ALGORITHMS.get(target.settings.checksum)
        parameters: dict[str, Any] = {"ChecksumAlgorithm": algorithm} if algorithm else {}
        parameters["Metadata"] = {OWNER_METADATA: token}
        self._id = ""
        self._starts = 0
        self._id = self._begin({**parameters, **target.settings.write_parameters()})
        self._pool = ContextPool(target.settings.concurrency, thread_name_prefix="holdfast-s3-part")
        self._room = threading.BoundedSemaphore(target.settings.concurrency)
        self._parts: list[Future[dict[str, Any]]] = []
        self._part_bytes = target.settings.part_size
        self._part = bytearray()
        self._filled = 0
        self._size = 0
        self._free: list[bytearray] = []
        self._failures: list[BaseException] = []
        self._is_aborted = False

    def write(self, data: memoryview) -> None:
        """Append bytes, and send parts that are full."""
        while data:
            if not self._filled:
                self._part = self._buffer()
            piece = data[: len(self._part) - self._filled]
            end = self._filled + len(piece)
            with memoryview(self._part) as part:  # assignment to a bytearray itself makes a copy
                part[self._filled : end] = piece
            data = data[len(piece) :]
            self._filled = end
            if end == len(self._part):
                self._filled = 0
                self.send(self._part)

    def send(self, part: bytearray) -> None:
        """Send the next part; waits while the maximum number of parts is being sent."""
        count, max_parts = len(self._parts), self._target.settings.MAX_PARTS
        if count == max_parts:
            raise InvalidRequestError(f"file has more than {max_parts} parts", self._target.uri)
        self._room.acquire()
        try:
            self._check()
            sent = self._pool.submit(self._upload, count + 1, part)
        except BaseException as error:
            self._room.release()
            raise_shortage(error, self._target.uri)
            if isinstance(error, RuntimeError):  # the pool was shut down by `abort`
                raise StreamClosedError("stream was discarded", self._target.uri) from error
            raise
        self._parts.append(sent)
        self._size += len(part)
        if len(self._parts) % self._target.settings.PARTS_PER_SIZE == 0:
            self._part_bytes *= 2
        # The callback has no reference to this upload: a reference cycle would keep the buffers alive.
        sent.add_done_callback(partial(recycle_part, self._room, self._failures))

    def _buffer(self) -> bytearray:
        """Return a buffer for a part; reuses that of a sent part, because allocation costs time and memory."""
        while self._free:
            free = self._free.pop()
            if len(free) == self._part_bytes:
                return free
        return bytearray(self._part_bytes)

    def _begin(self, parameters: dict[str, Any]) -> str:
        def attempt() -> str:
            self._starts += 1
            answer = self._target.request("create_multipart_upload", **parameters)
            return str(answer["UploadId"])

        try:
            return self._target.retrier.call("create_multipart_upload", attempt)
        except CheckpointError:
            self._abort_twins()
            raise

    def _abort_twins(self) -> None:
        """Abort other uploads of this file, which were started by requests whose answers were lost."""
        target = self._target
        prefix = target.key
        if is_directory_bucket(target.bucket):  # only whole directories can be listed there
            prefix = prefix[: prefix.rfind("/") + 1]
        with suppress(CheckpointError), map_errors(target.uri, "list_multipart_uploads"):
            answer = target.client.list_multipart_uploads(
                Bucket=target.bucket, Prefix=prefix, **target.settings.request_parameters()
            )
            for upload in answer.get("Uploads", ()):
                if upload["Key"] == target.key and upload["UploadId"] != self._id:
                    target.request("abort_multipart_upload", UploadId=upload["UploadId"])

    def complete(self) -> None:
        """Create the object once all parts are sent."""
        if self._filled:
            del self._part[self._filled :]
            self._filled = 0
            self.send(self._part)
        self._part = bytearray()
        parts = self._parts  # `abort` may release them concurrently
        for part in parts:
            with suppress(CancelledError):  # cancelled by `abort`, so that waiting would never end
                part.exception()
        self._check()
        sent = [part.result() for part in parts]
        self._pool.shutdown(wait=False)
        try:
            self._target.create(
                "complete_multipart_upload",
                self._token,
                UploadId=self._id,
                MultipartUpload={"Parts": sent},
                MpuObjectSize=self._size,
            )
        except CheckpointNotFoundError as error:
            self._check()
            message = "upload of this file no longer exists in S3"
            raise StorageUnavailableError(message, self._target.uri) from error
        if self._starts > 1:
            self._abort_twins()

    def abort(self) -> None:
        """Delete all parts; never raises, and does not wait for parts that are being sent."""
        self._is_aborted = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._abort_once()
        if self._starts > 1:
            self._abort_twins()
        # Tracebacks of failed parts refer to this upload and its buffers.
        self._parts, self._failures = [], []

    def _check(self) -> None:
        if self._is_aborted:
            raise StreamClosedError("stream was discarded", self._target.uri)
        if self._failures:  # not in a local variable: the traceback would make a reference cycle
            raise self._failures[0]

    def _abort_once(self) -> None:
        try:
            with retry_deadline(ABORT_DEADLINE_S):
                self._target.request_with_retries("abort_multipart_upload", UploadId=self._id)
        except CheckpointNotFoundError:
            pass
        except CheckpointError:
            _log.warning(
                "could not abort upload %s; the next sweep will: %s",
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
                self._abort_once()  # a part that arrives after the abort would remain
        self._free.append(part)
        return {"PartNumber": number, "ETag": answer["ETag"], **checksum}


def recycle_part(
    room: threading.Semaphore, failures: list[BaseException], part: Future[dict[str, Any]]
) -> None:
    """Return a part's buffer to the pool, and record the part's failure."""
    room.release()
    if not part.cancelled() and (failure := part.exception()) is not None:
        failures.append(failure)
