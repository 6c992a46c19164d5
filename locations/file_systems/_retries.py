"""The one place that repeats what failed: around single calls, until a deadline."""

import io
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import BinaryIO, TypeVar, cast

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageFullError,
    StorageUnavailableError,
    StreamClosedError,
)
from holdfast.locations.file_systems._port import (
    BytesLike,
    ExclusiveFileSystem,
    FileOutputStream,
    FileStatus,
    FileSystem,
)

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long a failing call is repeated; values only.

    Waits are drawn evenly from zero to a bound that doubles each time, so that the tasks of a job
    do not all come back at once.

    Attributes:
        deadline_s: Seconds from the beginning of a call after which it is not repeated; 0 never
            repeats.
        first_wait_s: Bound of the first wait, seconds.
        longest_wait_s: Bound that no wait exceeds, seconds.
    """

    deadline_s: float = 60.0
    first_wait_s: float = 0.05
    longest_wait_s: float = 5.0

    def __post_init__(self) -> None:
        if not self.deadline_s >= 0 or not 0 < self.first_wait_s <= self.longest_wait_s:
            message = (
                f"can't retry by {self}; the deadline must not be negative, the waits positive"
            )
            raise InvalidRequestError(message)


_UNTIL: ContextVar[float] = ContextVar("_UNTIL", default=math.inf)


@contextmanager
def retry_deadline(seconds: float) -> Iterator[None]:
    """Repeat nothing in this block, on this thread, after that many seconds from now.

    For work that makes many calls: each has a deadline of its own otherwise, and they add up.
    """
    token = _UNTIL.set(min(_UNTIL.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _UNTIL.reset(token)


class RetryingFileSystem:
    """Repeats the calls of another file system that provably changed nothing, or may be repeated.

    Streams are passed through: a part of a stream is its adapter's to repeat, and a whole stream
    can't be. What is read goes on behind the last byte that arrived.

    Args:
        inner: The store's adapter, which must not repeat anything itself.
        policy: When to give up.
        clock: Seconds that only go up.
        sleep: Waits that many seconds.
    """

    def __init__(
        self,
        inner: FileSystem,
        policy: RetryPolicy,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.inner = inner
        self._policy = policy
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    @property
    def retries(self) -> Counter[str]:
        """How often each method was repeated since the process began."""
        with self._lock:
            return Counter(self._counts)

    def prepare_directory(self, uri: str, /) -> None:
        self.repeating("prepare_directory", lambda: self.inner.prepare_directory(uri))

    def create(self, uri: str, /) -> FileOutputStream:
        return self.repeating("create", lambda: self.inner.create(uri))

    def open(self, uri: str, /) -> BinaryIO:
        return cast("BinaryIO", _RetryingInputStream(self, uri))

    def list(self, uri: str, /) -> Iterable[FileStatus]:
        return self.repeating("list", lambda: list(self.inner.list(uri)))

    def delete(self, uris: Iterable[str], /) -> None:
        files = list(uris)
        if files:
            self.repeating("delete", lambda: self.inner.delete(files))

    def delete_empty_directory(self, uri: str, /) -> None:
        self.repeating("delete_empty_directory", lambda: self.inner.delete_empty_directory(uri))

    def delete_tree(self, uri: str, /) -> None:
        self.repeating("delete_tree", lambda: self.inner.delete_tree(uri))

    def repeating_publish(self, attempt: Callable[[], None]) -> None:
        """The same for making a file appear, whose outcome may be unknown.

        A second attempt can meet the file of one whose answer was lost: a conflict, which whoever
        knows what is unique about the data has to look into.
        """
        unknown: list[OutcomeUnknownError] = []

        def noted() -> None:
            try:
                attempt()
            except OutcomeUnknownError as error:
                unknown.append(error)
                raise

        try:
            self.repeating("publish", noted, is_transient=_may_be_repeated)
        except CheckpointConflictError:
            raise
        except CheckpointError as error:
            if unknown:  # this attempt did nothing, but an earlier one may have
                raise unknown[0] from error
            raise

    def repeating(
        self,
        call: str,
        attempt: Callable[[], _Result],
        *,
        is_transient: Callable[[BaseException], bool] | None = None,
    ) -> _Result:
        """Do it until it is done, fails for good, or takes too long; its last error comes out."""
        is_transient = is_transient or _changed_nothing
        end = min(self._clock() + self._policy.deadline_s, _UNTIL.get())
        try:
            return attempt()
        except CheckpointError as error:
            if not is_transient(error):
                raise
            failed: list[CheckpointError] = [error]

        def next_attempt() -> _Result:
            if failed:  # the one above
                raise failed.pop()
            return attempt()

        def deadline_is_near(state: RetryCallState) -> bool:
            return self._clock() + state.upcoming_sleep >= end

        def note(state: RetryCallState) -> None:
            with self._lock:
                self._counts[call] += 1
            error = state.outcome.exception() if state.outcome else None
            _log.warning(
                "%s failed and is tried again in %.2f s: %s", call, state.upcoming_sleep, error
            )

        retrying = Retrying(
            retry=retry_if_exception(is_transient),
            stop=deadline_is_near,
            wait=wait_random_exponential(
                multiplier=self._policy.first_wait_s, max=self._policy.longest_wait_s
            ),
            before_sleep=note,
            sleep=self._sleep,
            reraise=True,
        )
        return retrying(next_attempt)


class RetryingExclusiveFileSystem(RetryingFileSystem):
    """The same for a store that can publish.

    Attributes:
        found_exclusive: Directories in which that was tried, and found to be so.
    """

    inner: ExclusiveFileSystem

    def __init__(
        self,
        inner: ExclusiveFileSystem,
        policy: RetryPolicy,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(inner, policy, clock=clock, sleep=sleep)
        self.found_exclusive: set[str] = set()

    def publish(self, uri: str, data: bytes, /) -> None:
        self.repeating_publish(lambda: self.inner.publish(uri, data))


class _RetryingInputStream(io.RawIOBase):
    """A file that is opened anew where it stood when a read fails."""

    def __init__(self, file_system: RetryingFileSystem, uri: str) -> None:
        self._file_system = file_system
        self._uri = uri
        self._position = 0
        self._raw: BinaryIO | None = None
        self._read(lambda _raw: None)  # a missing file is noticed at once

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if whence == io.SEEK_END:
            base = self._read(lambda raw: raw.seek(0, io.SEEK_END))
        else:
            base = self._position if whence == io.SEEK_CUR else 0
        if base + offset < 0:
            raise InvalidRequestError(f"position {base + offset} is negative", self._uri)
        self._position = self._read(lambda raw: raw.seek(base + offset))
        return self._position

    def readinto(self, buffer: BytesLike, /) -> int:  # type: ignore[override]  # 3.11 has no Buffer
        def fill(raw: BinaryIO) -> int:
            return int(raw.readinto(buffer))  # type: ignore[attr-defined]  # every raw stream has it

        count = self._read(fill)
        self._position += count
        return count

    def close(self) -> None:
        self._forget()
        super().close()

    def _read(self, action: Callable[[BinaryIO], _Result]) -> _Result:
        if self.closed:
            raise StreamClosedError("stream is closed", self._uri)

        def attempt() -> _Result:
            try:
                if self._raw is None:
                    self._raw = self._file_system.inner.open(self._uri)
                    self._raw.seek(self._position)
                return action(self._raw)
            except StorageUnavailableError:
                self._forget()
                raise
            except OSError as error:
                self._forget()
                message = f"file can't be read ({error.strerror or error})"
                raise StorageUnavailableError(message, self._uri) from error

        return self._file_system.repeating("open", attempt)

    def _forget(self) -> None:
        raw, self._raw = self._raw, None
        if raw is not None:
            with suppress(OSError, CheckpointError):  # it was only read
                raw.close()


def _changed_nothing(error: BaseException) -> bool:
    # No room is not for us to make, and waiting seldom does.
    return isinstance(error, StorageUnavailableError) and not isinstance(error, StorageFullError)


def _may_be_repeated(error: BaseException) -> bool:
    return _changed_nothing(error) or isinstance(error, OutcomeUnknownError)
