"""State written to two places at once: one that counts, and a copy that is good to have."""

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from holdfast.errors import (
    CheckpointError,
    InvalidRequestError,
    StorageUnavailableError,
    StreamClosedError,
)
from holdfast.locations.file_systems import BytesLike
from holdfast.locations.handles import StreamStateHandle
from holdfast.locations.storages import CheckpointStateOutputStream

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class DuplicatingCheckpointOutputStream:
    """A state stream whose bytes go to a primary stream and to a secondary one.

    An error of the primary is the caller's. One of the secondary is logged and ends it: the
    primary goes on alone, and there will be no secondary handle. There is none after an error of
    the primary either, because nobody knows what was written then.

    Args:
        primary: The one that counts.
        secondary: The copy. It ends at once if it stands at another position, where a handle's
            offsets would be wrong.

    Source:
        Flink, DuplicatingCheckpointOutputStream. It has a buffer; here the two streams have.
    """

    def __init__(
        self, primary: CheckpointStateOutputStream, secondary: CheckpointStateOutputStream
    ) -> None:
        self._primary = primary
        self._secondary = secondary
        self._failure: BaseException | None = None  # what ended the secondary
        position, other = primary.tell(), secondary.tell()
        if other != position:
            message = f"secondary stream is at {other}, the primary one at {position}"
            self._secondary_failed(InvalidRequestError(message))

    def write(self, data: BytesLike, /) -> int:
        return self._on_both(lambda stream: stream.write(data))

    def flush(self) -> None:
        self._on_both(lambda stream: stream.flush())

    def flush_to_file(self) -> None:
        self._on_both(lambda stream: stream.flush_to_file())

    def sync(self) -> None:
        self._on_both(lambda stream: stream.sync())

    def tell(self) -> int:
        return self._primary.tell()

    def close_and_get_handle(self) -> StreamStateHandle | None:
        return self._on_primary(lambda stream: stream.close_and_get_handle())

    def close_and_get_secondary_handle(self) -> StreamStateHandle | None:
        """Keep the copy; None if nothing was written. The secondary's one success call.

        Raises an error of the class of what ended the secondary, now or before;
        `StorageUnavailableError` for one that is not ours.
        """
        if self._failure is None:
            try:
                return self._secondary.close_and_get_handle()
            except StreamClosedError:
                raise  # the caller's own mistake
            except Exception as error:  # noqa: BLE001  # it is raised below
                self._secondary_failed(error)
        kind: type[CheckpointError] = StorageUnavailableError
        location = ""
        if isinstance(self._failure, CheckpointError):
            kind, location = type(self._failure), self._failure.location
        raise kind("the secondary stream failed", location) from self._failure

    def close(self) -> None:
        try:
            self._primary.close()
        finally:
            self._secondary.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        self.close()

    def _on_both(self, call: Callable[[CheckpointStateOutputStream], _T]) -> _T:
        result = self._on_primary(call)
        if self._failure is None:
            try:
                call(self._secondary)
            except Exception as error:  # noqa: BLE001  # the primary can do without, whatever it is
                self._secondary_failed(error)
            except BaseException as error:
                self._end_secondary(error)
                raise
        return result

    def _on_primary(self, call: Callable[[CheckpointStateOutputStream], _T]) -> _T:
        try:
            return call(self._primary)
        except BaseException as error:
            self._end_secondary(error)
            raise

    def _secondary_failed(self, error: Exception) -> None:
        _log.warning("a copy of state failed; its primary goes on alone", exc_info=error)
        self._end_secondary(error)

    def _end_secondary(self, error: BaseException) -> None:
        """After a failure in either stream the two may differ."""
        if self._failure is None:
            self._failure = error
        self._secondary.close()
