"""Writing an object in parts, sent as they fill."""

import logging
import threading
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from typing import Any

from holdfast.common import ContextPool
from holdfast.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    StorageUnavailableError,
    StreamClosedError,
)
from holdfast.locations.file_systems.retries import ABORT_DEADLINE_S, retry_deadline
from holdfast.locations.file_systems.s3.s3_errors import translated
from holdfast.locations.file_systems.s3.s3_object import ALGORITHMS, OWNER, S3Object, checksum_of

_log = logging.getLogger(__name__)


class MultipartUpload:
    """Parts on their way, a few at a time."""

    def __init__(self, target: S3Object, token: str) -> None:
        self._target = target
        self._token = token
        algorithm = ALGORITHMS.get(target.settings.checksum)
        parameters: dict[str, Any] = {"ChecksumAlgorithm": algorithm} if algorithm else {}
        parameters["Metadata"] = {OWNER: token}
        self._id = ""
        self._begun = 0
        self._id = self._begin({**parameters, **target.settings.for_writing()})
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
        """Append bytes; sends what has become a part."""
        while data:
            if not self._filled:
                self._part = self._buffer()
            piece = data[: len(self._part) - self._filled]
            end = self._filled + len(piece)
            with memoryview(self._part) as part:  # to a bytearray itself it goes by a copy
                part[self._filled : end] = piece
            data = data[len(piece) :]
            self._filled = end
            if end == len(self._part):
                self._filled = 0
                self.send(self._part)

    def send(self, part: bytearray) -> None:
        """Send the next part; waits while as many as may be are on their way."""
        count, most = len(self._parts), self._target.settings.MOST_PARTS
        if count == most:
            raise InvalidRequestError(f"file has more than {most} parts", self._target.uri)
        self._room.acquire()
        try:
            self._check()
            sent = self._pool.submit(self._upload, count + 1, part)
        except BaseException as error:
            self._room.release()
            if isinstance(error, RuntimeError):  # the pool was shut down by `abort`
                raise StreamClosedError("stream was discarded", self._target.uri) from error
            raise
        self._parts.append(sent)
        self._size += len(part)
        if len(self._parts) % self._target.settings.PARTS_OF_A_SIZE == 0:
            self._part_bytes *= 2
        # It doesn't know this upload: a circle of references would keep the buffers for long.
        sent.add_done_callback(partial(note_end, self._room, self._failures))

    def _buffer(self) -> bytearray:
        """Room for a part: that of a part which was sent, if there is any, since new room costs time and memory."""
        while self._free:
            free = self._free.pop()
            if len(free) == self._part_bytes:
                return free
        return bytearray(self._part_bytes)

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
        """Give up other uploads that were begun for this file: the answer to each got lost."""
        target = self._target
        with suppress(CheckpointError), translated(target.uri):
            answer = target.client.list_multipart_uploads(
                Bucket=target.bucket, Prefix=target.key, **target.settings.for_all()
            )
            for upload in answer.get("Uploads", ()):
                if upload["Key"] == target.key and upload["UploadId"] != self._id:
                    target.request("abort_multipart_upload", UploadId=upload["UploadId"])

    def complete(self) -> None:
        """Make the object of the parts, once they are there."""
        if self._filled:
            del self._part[self._filled :]
            self._filled = 0
            self.send(self._part)
        self._part = bytearray()
        parts = self._parts  # `abort` may let go of them meanwhile
        for part in parts:
            with suppress(CancelledError):  # by `abort`; to wait for such a one would take for ever
                part.exception()
        self._check()
        sent = [part.result() for part in parts]
        self._pool.shutdown(wait=False)
        try:
            self._target.made(
                "complete_multipart_upload",
                self._token,
                UploadId=self._id,
                MultipartUpload={"Parts": sent},
                MpuObjectSize=self._size,
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
        # Tracebacks of parts that failed lead back to this upload and its buffers.
        self._parts, self._failures = [], []

    def _check(self) -> None:
        if self._is_aborted:
            raise StreamClosedError("stream was discarded", self._target.uri)
        if self._failures:  # in no variable of its own: the traceback would make a circle of it
            raise self._failures[0]

    def _abort_once(self) -> None:
        try:
            with retry_deadline(ABORT_DEADLINE_S):
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
        self._free.append(part)
        return {"PartNumber": number, "ETag": answer["ETag"], **checksum}


def note_end(
    room: threading.Semaphore, failures: list[BaseException], part: Future[dict[str, Any]]
) -> None:
    """Give a part's room back, and note why the part failed if it did."""
    room.release()
    if not part.cancelled() and (failure := part.exception()) is not None:
        failures.append(failure)
