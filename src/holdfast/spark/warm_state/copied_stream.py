"""State written to two places at once: to storage, which counts, and to a copy on the disk of the host."""

import logging
from collections.abc import Callable
from typing import TypeVar

from holdfast.locations.file_systems import BytesLike
from holdfast.locations.handles import FileStateHandle, StreamStateHandle
from holdfast.locations.storages import CheckpointStateOutputStream
from holdfast.spark.warm_state.local_stream import LocalOutputStream

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class CopiedOutputStream(CheckpointStateOutputStream):
    """A state stream that leaves a copy of what it wrote, if that became a file.

    An error of the stream is the caller's, and leaves no copy, because nobody knows what was written
    then. An error of the copy is logged and ends the copy: the stream goes on alone.

    Args:
        stream: Leads to storage; nothing was written to it.
        copy: The copy; nothing was written to it.
        keep: Makes the copy what is read for the file.

    Source:
        Flink, DuplicatingCheckpointOutputStream. It has a buffer; here the two places have.
    """

    def __init__(
        self,
        stream: CheckpointStateOutputStream,
        copy: LocalOutputStream,
        keep: Callable[[FileStateHandle], object],
    ) -> None:
        self._stream = stream
        self._copy: LocalOutputStream | None = copy  # None when it has ended
        self._keep = keep

    def write(self, data: BytesLike, /) -> int:
        written = self._in_storage(lambda: self._stream.write(data))
        copy = self._copy
        if copy is not None:
            self._beside(lambda: copy.write(data))
        return written

    def flush(self) -> None:
        self._in_storage(self._stream.flush)

    def flush_to_file(self) -> None:
        self._in_storage(self._stream.flush_to_file)

    def sync(self) -> None:
        self._in_storage(self._stream.sync)

    def tell(self) -> int:
        return self._stream.tell()

    def close_and_get_handle(self) -> StreamStateHandle | None:
        self._finished = True
        handle = self._in_storage(self._stream.close_and_get_handle)
        if isinstance(handle, FileStateHandle) and self._copy is not None:
            self._beside(lambda: self._keep(handle))
        self._end_copy()
        return handle

    def close(self) -> None:
        self._finished = True
        try:
            self._stream.close()
        finally:
            self._end_copy()

    def _in_storage(self, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except BaseException:
            self._end_copy()
            raise

    def _beside(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001  # the stream can do without, whatever it is
            _log.warning("there will be no local copy of state: %s", error)
            self._end_copy()
        except BaseException:
            self._end_copy()
            raise

    def _end_copy(self) -> None:
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.close()  # nothing, if it is kept
