"""Objects in S3: input from any position, and output by one PUT if it is small, otherwise in parts."""

import os
import threading
import uuid
from contextlib import suppress
from typing import Any

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointCorruptedError,
    CheckpointError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageUnavailableError,
    StreamClosedError,
)
from holdfast.locations.file_systems.port import BytesLike, PositionedInputStream
from holdfast.locations.file_systems.retrying import ABORT_DEADLINE_S, retry_deadline
from holdfast.locations.file_systems.s3.multipart_upload import MultipartUpload
from holdfast.locations.file_systems.s3.obstore_bucket import PutOutcome
from holdfast.locations.file_systems.s3.s3_object import OWNER_METADATA, S3Object, checksum_of

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

    def readinto(self, buffer: BytesLike, /) -> int:  # type: ignore[override]  # 3.11 has no Buffer
        if self.closed:
            raise StreamClosedError("stream is closed", self._target.uri)
        view = memoryview(buffer).cast("B")
        if self._position >= self._size or not view:
            return 0
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
        self._position += len(data)
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
        try:
            return memoryview(self._body.read(length))
        except Exception as error:  # urllib3's and botocore's: the connection is lost
            message = f"S3's answer ended early ({type(error).__name__})"
            raise StorageUnavailableError(message, self._target.uri) from error

    def _forget_body(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            body.close()


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
