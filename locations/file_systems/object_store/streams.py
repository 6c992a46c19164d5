"""Objects in any store that obstore supports: input from any position, output by one PUT or in parts."""

import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointCorruptedError,
    CheckpointError,
    OutcomeUnknownError,
    StorageUnavailableError,
    StreamClosedError,
)
from holdfast.locations.file_systems.object_store.objects import (
    OWNER_ATTRIBUTE,
    StoredObject,
    error_for,
    request,
    unknown_outcome,
)
from holdfast.locations.file_systems.obstore_requests import status_of, was_not_performed
from holdfast.locations.file_systems.port import BytesLike, PositionedInputStream
from holdfast.locations.file_systems.retrying import ABORT_DEADLINE_S, Retrier, retry_deadline

HEAD_BYTES = 4 << 20
"""Number of bytes of the first request. Most objects are smaller."""

SKIPPED_BYTES = 256 << 10
"""A gap up to this size is read and discarded instead of sending a new request."""

_PIECE_BYTES = 1 << 20

_NO_SUCH_RANGE = 416


class ObjectInputStream(PositionedInputStream):
    """An object whose beginning is read by one request, and the rest by another as long as reads are sequential.

    A read elsewhere sends another request, which must find the same object.
    """

    def __init__(self, target: StoredObject) -> None:
        self._target = target
        self._uri = target.uri
        self._stream: Any = None
        self._piece = memoryview(b"")
        self._piece_position = 0
        meta, self._piece = _head(target)
        self._size = int(meta["size"])
        self._etag = meta["e_tag"]

    def _fill(self, view: memoryview) -> int:
        offset = self._position - self._piece_position
        if not 0 <= offset < len(self._piece):
            try:
                self._go_to_position()
            except BaseException:
                self._forget_stream()  # its position is unknown after an interrupt
                raise
            offset = self._position - self._piece_position
        data = self._piece[offset : offset + len(view)]
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._forget_stream()
        super().close()

    def _go_to_position(self) -> None:
        """Read pieces until one contains the position."""
        end = self._piece_position + len(self._piece)
        if self._stream is None or not 0 <= self._position - end <= SKIPPED_BYTES:
            self._forget_stream()
            self._stream = self._stream_from(self._position)
            end = self._position
        while end <= self._position:
            piece = request(self._uri, "read", lambda: next(self._stream, None))
            if not piece:
                message = f"object ended at byte {end} of {self._size}"
                raise StorageUnavailableError(message, self._uri)
            self._piece, self._piece_position = memoryview(piece), end
            end += len(self._piece)

    def _stream_from(self, position: int) -> Any:
        from obstore import get  # noqa: PLC0415  # optional

        options: Any = {"range": {"offset": position}}
        if self._etag:
            options["if_match"] = self._etag
        try:
            answer = self._target.request("read", lambda *at: get(*at, options=options))
        except CheckpointConflictError:
            message = "object was replaced while it was being read"
            raise CheckpointCorruptedError(message, self._uri) from None
        return answer.stream(min_chunk_size=_PIECE_BYTES)

    def _forget_stream(self) -> None:
        self._stream, self._piece, self._piece_position = None, memoryview(b""), 0


def read_range(target: StoredObject, start: int, end: int) -> memoryview:
    """Return the bytes of an object from `start` up to `end`; fewer if it ends before."""
    from obstore import get_range  # noqa: PLC0415  # optional

    try:
        data = get_range(target.bucket.store, target.key, start=start, end=end)
    except Exception as error:  # noqa: BLE001  # obstore has many classes
        # Azure's emulator answers with the bytes before the end, and obstore has no status then.
        if status_of(error) == _NO_SUCH_RANGE or "StartTooLarge" in str(error):
            return memoryview(b"")
        raise error_for(error, target.uri, "read") from None
    return memoryview(data).cast("B")


def _head(target: StoredObject) -> tuple[Any, memoryview]:
    """Return the metadata and the first bytes of an object."""
    from obstore import get, head  # noqa: PLC0415  # optional

    try:
        answer = get(target.bucket.store, target.key, options={"range": (0, HEAD_BYTES)})
        return answer.meta, memoryview(answer.bytes())
    except Exception as error:  # noqa: BLE001  # obstore has many classes
        if status_of(error) != _NO_SUCH_RANGE:
            raise error_for(error, target.uri, "read") from None
    meta: Any = target.request("read", head)  # an empty object has no ranges
    return meta, memoryview(b"")


class ObjectOutputStream:
    """An object that does not exist before it is committed."""

    def __init__(
        self, target: StoredObject, retrier: Retrier, *, part_bytes: int, concurrency: int
    ) -> None:
        self._target = target
        self._retrier = retrier
        self._part_bytes = part_bytes
        self._concurrency = concurrency
        self._attributes = {OWNER_ATTRIBUTE: uuid.uuid4().hex}
        self._head = bytearray()
        self._upload: Any = None
        self._lock = threading.Lock()  # never held during a request, because `abort` must not wait
        self._process = os.getpid()
        self._is_finished = False
        self._is_in_use = False

    def write(self, data: BytesLike, /) -> None:
        with self._in_use():
            self._append(memoryview(data).cast("B"))
        self._check_unfinished()

    def sync(self) -> None:
        """Do nothing: an object is durable once it is committed."""
        self._check_unfinished()

    def commit(self, *, durable_name: bool = True) -> None:  # noqa: ARG002  # names are always durable
        try:
            with self._in_use():
                if self._upload is None:
                    self._put()
                else:
                    self._complete()
        except OutcomeUnknownError:
            self._delete_written_object()
            raise
        with self._lock:
            was_aborted, self._is_finished = self._is_finished, True
        if was_aborted:
            self._delete_written_object()
            raise StreamClosedError("stream was discarded", self._target.uri)

    def abort(self) -> None:
        if self._process != os.getpid():
            return  # a fork must not delete its parent's file
        with self._lock:
            self._is_finished = True
            if self._is_in_use:
                return  # that call of another thread discards the upload when it ends
            upload, self._upload = self._upload, None
        _discard(upload)

    def __del__(self) -> None:
        if not getattr(self, "_is_finished", True):
            self.abort()

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Make a call the only one that uses the upload; after a failure the stream is discarded."""
        with self._lock:
            self._check_unfinished()
            self._is_in_use = True
        is_done = False
        try:
            yield
            is_done = True
        finally:
            upload = None
            with self._lock:
                self._is_in_use = False
                self._is_finished = self._is_finished or not is_done
                if self._is_finished:
                    upload, self._upload = self._upload, None
            _discard(upload)

    def _append(self, data: memoryview) -> None:
        if self._upload is None:
            room = self._part_bytes - len(self._head)
            self._head += data[:room]
            data = data[room:]
            if not data:
                return
            self._upload = self._begin_upload()
            self._send(self._head)
            self._head = bytearray()
        self._send(data)

    def _send(self, data: BytesLike) -> None:
        request(self._target.uri, "write", lambda: self._upload.write(data))

    def _begin_upload(self) -> Any:
        from obstore import open_writer  # noqa: PLC0415  # optional

        return request(
            self._target.uri,
            "write",
            lambda: open_writer(
                self._target.bucket.store_for_parts,
                self._target.key,
                attributes=self._attributes,
                buffer_size=self._part_bytes,
                max_concurrency=self._concurrency,
            ),
        )

    def _put(self) -> None:
        self._retrier.create(
            "create",
            lambda: self._target.put_if_free(self._head, self._attributes),
            self._is_written,
        )

    def _complete(self) -> None:
        try:
            self._upload.close()
        except Exception as error:  # noqa: BLE001  # obstore has many classes
            # A repeated completion finds no upload if the answer to the first one was lost.
            if not self._retrier.call("create", self._is_written):
                if was_not_performed(error):
                    raise error_for(error, self._target.uri, "write") from None
                raise unknown_outcome(self._target.uri) from None
        self._upload = None

    def _is_written(self) -> bool:
        return self._target.was_created_by(self._attributes[OWNER_ATTRIBUTE])

    def _delete_written_object(self) -> None:
        """Delete the object, which may have been written despite the error; its name was not passed on."""
        with suppress(CheckpointError), retry_deadline(ABORT_DEADLINE_S):
            if self._retrier.call("delete", self._is_written):
                self._retrier.call("delete", self._target.delete)

    def _check_unfinished(self) -> None:
        if self._is_finished:
            raise StreamClosedError("stream is finished or discarded", self._target.uri)


def _discard(upload: Any) -> None:
    """Abort an upload; never raises. obstore's writer has no method for it, and one that is dropped leaves its parts."""
    if upload is not None:
        error = StreamClosedError("stream was discarded")
        with suppress(Exception):
            upload.__exit__(type(error), error, None)
