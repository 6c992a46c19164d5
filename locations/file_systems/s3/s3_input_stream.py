"""Reading an object from wherever the reader stands."""

from typing import Any

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointCorruptedError,
    InvalidRequestError,
    StorageUnavailableError,
    StreamClosedError,
)
from holdfast.locations.file_systems.port import BytesLike
from holdfast.locations.file_systems.positioned import PositionedInputStream
from holdfast.locations.file_systems.s3.s3_object import S3Object

SKIPPED_BYTES = 256 << 10
"""A gap up to this is read and thrown away, rather than asked for anew."""


class S3InputStream(PositionedInputStream):
    """An object that is read by one request as long as the reader goes on where it was.

    Where obstore is used, that one is for the beginning.

    Another one when it jumps; it has to find the same object.
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
            raise StorageUnavailableError("S3's answer is no object", target.uri)
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
            self._head = data  # its room is free again
            try:
                self._go_to_position()
                data = self._read(len(view))
                self._body_position += len(data)
            except BaseException:
                self._forget_body()  # after an interrupt nobody knows where it stands
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
            message = "object was replaced while it was read"
            raise CheckpointCorruptedError(message, self._target.uri) from error
        if position and "ContentRange" not in answer:
            answer["Body"].close()
            raise InvalidRequestError("this store can't read parts of files", self._target.uri)
        return answer["Body"]

    def _read(self, length: int) -> memoryview:
        try:
            return memoryview(self._body.read(length))
        except Exception as error:  # urllib3's and botocore's: the connection is lost
            message = f"answer of S3 was cut off ({type(error).__name__})"
            raise StorageUnavailableError(message, self._target.uri) from error

    def _forget_body(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            body.close()
