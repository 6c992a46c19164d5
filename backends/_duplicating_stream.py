"""State written to two places at once: one that counts, and a copy that is good to have."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TypeVar

from holdfast.errors import CheckpointError, InvalidRequestError, StorageUnavailableError
from holdfast.locations import BytesLike, CheckpointStateOutputStream, StreamStateHandle

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
            _log.warning("a copy of state can't begin: %s", message)
            self._end_secondary(InvalidRequestError(message))

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
        with self._ending_secondary():
            return self._primary.close_and_get_handle()

    def close_and_get_secondary_handle(self) -> StreamStateHandle | None:
        """Keep the copy; None if nothing was written. The secondary's one success call.

        Raises what ended the secondary, if anything has, as an error of the same class, or
        `StorageUnavailableError` for one that is not ours; else as `close_and_get_handle`.
        """
        if self._failure is None:
            return self._secondary.close_and_get_handle()
        kind: type[CheckpointError] = StorageUnavailableError
        location = ""
        if isinstance(self._failure, CheckpointError):
            kind, location = type(self._failure), self._failure.location
        raise kind("the secondary stream has ended before", location) from self._failure

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
        with self._ending_secondary():
            result = call(self._primary)
        if self._failure is None:
            try:
                with self._ending_secondary():
                    call(self._secondary)
            except Exception:  # noqa: BLE001  # whatever it is, the checkpoint can do without
                _log.warning("a copy of state failed; its primary goes on alone", exc_info=True)
        return result

    @contextmanager
    def _ending_secondary(self) -> Iterator[None]:
        """After a failure in either stream the two may differ."""
        try:
            yield
        except BaseException as error:
            self._end_secondary(error)
            raise

    def _end_secondary(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        self._secondary.close()
