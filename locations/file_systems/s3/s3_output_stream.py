"""Writing an object of unknown length: one PUT while it is small, else parts."""

import os
import threading
import uuid
from contextlib import suppress

from holdfast.errors import (
    CheckpointError,
    InvalidRequestError,
    OutcomeUnknownError,
    StreamClosedError,
)
from holdfast.locations.file_systems.port import BytesLike
from holdfast.locations.file_systems.retries import ABORT_DEADLINE_S, retry_deadline
from holdfast.locations.file_systems.s3.multipart_upload import MultipartUpload
from holdfast.locations.file_systems.s3.s3_object import OWNER, S3Object, checksum_of
from holdfast.locations.file_systems.s3.through_obstore import PutOutcome


class S3OutputStream:
    """An object that appears when it is committed, and not before."""

    def __init__(self, target: S3Object) -> None:
        self._target = target
        self._token = uuid.uuid4().hex
        self._head = bytearray()
        self._upload: MultipartUpload | None = None
        self._lock = threading.Lock()  # held for moments only: `abort` waits for no request
        self._process = os.getpid()
        self._is_finished = False

    def write(self, data: BytesLike, /) -> None:
        self._check_unfinished()
        try:
            self._append(memoryview(data).cast("B"))
        except BaseException:
            self.abort()  # what is missing a piece must not be committed
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
        """Do nothing: nothing lasts in S3 before it is committed."""
        self._check_unfinished()

    def commit(self, *, durable_name: bool = True) -> None:  # noqa: ARG002  # every name lasts
        self._check_unfinished()
        try:
            if self._upload is None:
                self._put()
            else:
                self._upload.complete()
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
        """Delete the object that may have been written all the same; nobody knows its name."""
        with suppress(CheckpointError), retry_deadline(ABORT_DEADLINE_S):
            etag = self._target.version_of(self._token)
            if etag is None:
                return
            try:
                self._target.repeated("delete_object", IfMatch=etag)
            except InvalidRequestError:  # this store has no conditions on deletions
                self._target.repeated("delete_object")

    def __del__(self) -> None:
        if not getattr(self, "_is_finished", True):
            self.abort()

    def abort(self) -> None:
        if self._process != os.getpid():
            return  # a fork must not take its parent's file away
        with self._lock:
            was_finished, self._is_finished = self._is_finished, True
            upload = self._upload
        if upload is not None and not was_finished:
            upload.abort()

    def _put(self) -> None:
        outcome, metadata = PutOutcome.NOT_DONE, {OWNER: self._token}
        if self._target.obstore is not None:
            outcome = self._target.obstore.put(self._target.key, self._head, metadata)
        if outcome is PutOutcome.DONE:
            return
        self._target.made(
            "put_object",
            self._token,
            may_be_there=outcome is PutOutcome.UNKNOWN,
            Body=self._head,
            Metadata=metadata,
            **checksum_of(self._head, self._target.settings),
            **self._target.settings.for_writing(),
        )

    def _begin_upload(self) -> None:
        upload = MultipartUpload(self._target, self._token)
        with self._lock:
            self._upload, was_aborted = upload, self._is_finished
        if was_aborted:  # by another thread, which saw no upload
            upload.abort()
            raise StreamClosedError("stream was discarded", self._target.uri)
        head, self._head = self._head, bytearray()
        upload.send(head)

    def _check_unfinished(self) -> None:
        if self._is_finished:
            raise StreamClosedError("stream is finished or discarded", self._target.uri)
