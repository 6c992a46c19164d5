"""Writing an object in parts, each sent once it is full."""

import logging
import threading
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from typing import Any

from holdfast.common import ContextPool, raise_shortage
from holdfast.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    StorageUnavailableError,
    StreamClosedError,
)
from holdfast.locations.file_systems.retrying import ABORT_DEADLINE_S, retry_deadline
from holdfast.locations.file_systems.s3.s3_errors import map_errors
from holdfast.locations.file_systems.s3.s3_object import (
    ALGORITHMS,
    OWNER_METADATA,
    S3Object,
    checksum_of,
)

_log = logging.getLogger(__name__)


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
        with suppress(CheckpointError), map_errors(target.uri):
            answer = target.client.list_multipart_uploads(
                Bucket=target.bucket, Prefix=target.key, **target.settings.request_parameters()
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
