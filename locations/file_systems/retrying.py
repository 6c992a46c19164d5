"""Retries: of single calls until a deadline, and a file system that wraps another one to retry its calls."""

import io
import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import KW_ONLY, InitVar, dataclass, field
from functools import partial
from random import Random
from typing import Any, BinaryIO, TypeVar, cast

from tenacity import RetryCallState, Retrying, retry_if_exception

from holdfast.common import SYSTEM_CLOCK, Clock, ProcessLock, fill, raise_if_cancelled
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageFullError,
    StorageUnavailableError,
    StreamClosedError,
)
from holdfast.locations.file_systems.port import (
    BytesLike,
    ExclusiveFileSystem,
    FileOutputStream,
    FileStatus,
    FileSystem,
    PositionedInputStream,
    RangedFileSystem,
)

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

_RANDOM = Random()  # noqa: S311  # separate, so that programs that seed Python's generator are unaffected

_OPEN_FILES = 8
"""Files that are open at a time to read ranges, in stores that must open them."""

ABORT_DEADLINE_S = 10.0
"""Seconds that an aborted stream may take to delete its file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Deadline and waits of retries; values only.

    Waits are drawn uniformly between zero and a bound that doubles each time, so that the tasks of a job
    do not all retry at once.

    Attributes:
        deadline_s: Seconds from the start of a call after which it is not retried; 0 disables retries.
        first_wait_s: Upper bound of the first wait, seconds.
        max_wait_s: Upper bound of every wait, seconds.
    """

    deadline_s: float = 60.0
    first_wait_s: float = 0.05
    max_wait_s: float = 5.0

    def __post_init__(self) -> None:
        if not self.deadline_s >= 0 or not 0 < self.first_wait_s <= self.max_wait_s:
            message = f"deadline_s must be >= 0, first_wait_s > 0 and max_wait_s >= first_wait_s, got {self}"
            raise InvalidRequestError(message)


_UNTIL: ContextVar[float] = ContextVar("_UNTIL", default=math.inf)


@contextmanager
def retry_deadline(seconds: float, *, clock: Clock = SYSTEM_CLOCK) -> Iterator[None]:
    """Stop retrying in this block, on this thread, after a number of seconds.

    For work that makes many calls, whose separate deadlines would add up.
    """
    token = _UNTIL.set(min(_UNTIL.get(), clock.monotonic_s() + seconds))
    try:
        yield
    finally:
        _UNTIL.reset(token)


def _changed_nothing(error: BaseException) -> bool:
    # A full store is not retried: waiting seldom helps.
    return isinstance(error, StorageUnavailableError) and not isinstance(error, StorageFullError)


def _may_be_repeated(error: BaseException) -> bool:
    return _changed_nothing(error) or isinstance(error, OutcomeUnknownError)


@dataclass(frozen=True, slots=True)
class StoreCalls:
    """Numbers of calls of stores by their names.

    Attributes:
        calls: All calls, the repeated ones too.
        retries: Calls that repeated one that failed.
    """

    calls: Counter[str] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)

    def __sub__(self, earlier: "StoreCalls") -> "StoreCalls":
        return StoreCalls(self.calls - earlier.calls, self.retries - earlier.retries)


_CALLS_LOCK = ProcessLock()
_CALLS = StoreCalls()


def store_calls_of_process() -> StoreCalls:
    """Return the number of calls of all stores since this process or its parent started."""
    with _CALLS_LOCK.current:
        return StoreCalls(Counter(_CALLS.calls), Counter(_CALLS.retries))


class Retrier:
    """Retries failed calls by a policy, and logs and counts the retries."""

    def __init__(self, policy: RetryPolicy, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._policy = policy
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), clock=self._clock), (self._policy,)  # without the counts

    @property
    def counts(self) -> Counter[str]:
        """Number of retries of each call since the process started."""
        with self._lock:
            return Counter(self._counts)

    def publish(self, attempt: Callable[[], None]) -> None:
        """Retry a call that makes a file appear, also if its outcome is unknown.

        A second attempt can find the file of an attempt whose answer was lost. It then raises a
        conflict, and the caller compares the data to find out whose file it is.
        """
        self.create("publish", attempt, lambda: False)

    def create(
        self,
        name: str,
        attempt: Callable[[], None],
        is_ours: Callable[[], bool],
        *,
        unknown: OutcomeUnknownError | None = None,
    ) -> None:
        """Retry a call that creates a file if its name is free, and recognize the file of a lost answer.

        Args:
            name: The call.
            attempt: One call; raises `OutcomeUnknownError` if the store did not answer.
            is_ours: Returns whether the file under that name was created by this stream.
            unknown: The error of an earlier attempt with an unknown outcome.

        Raises:
            CheckpointConflictError: The name is taken.
            OutcomeUnknownError: The store did not confirm whether the file was created.
        """

        def attempt_and_check() -> None:
            nonlocal unknown
            try:
                attempt()
            except OutcomeUnknownError as error:
                unknown = unknown or error
                raise
            except (CheckpointConflictError, CheckpointNotFoundError):
                # An attempt whose answer was lost has created it: it has taken the name, or has
                # completed the upload, which no longer exists.
                if unknown is None or not is_ours():
                    raise

        try:
            self.call(name, attempt_and_check, is_transient=_may_be_repeated)
        except CheckpointConflictError:
            raise  # another writer's file was there first
        except CheckpointError as error:
            if unknown is not None and unknown is not error:  # an earlier attempt may have done it
                raise unknown from error
            raise

    def call(
        self,
        name: str,
        attempt: Callable[[], _Result],
        *,
        is_transient: Callable[[BaseException], bool] = _changed_nothing,
    ) -> _Result:
        """Retry a call until it succeeds, fails permanently, or reaches its deadline; raises the last error."""
        end = min(self._clock.monotonic_s() + self._policy.deadline_s, _UNTIL.get())

        def counted_attempt() -> _Result:
            with _CALLS_LOCK.current:
                _CALLS.calls[name] += 1
            return attempt()

        try:
            return counted_attempt()
        except CheckpointError as error:
            if not is_transient(error):
                raise
            failed: list[CheckpointError] = [error]

        def next_attempt() -> _Result:
            if failed:  # the one above
                raise failed.pop()
            return counted_attempt()

        def deadline_is_near(state: RetryCallState) -> bool:
            return self._clock.monotonic_s() + state.upcoming_sleep >= end

        def note(state: RetryCallState) -> None:
            with self._lock:
                self._counts[name] += 1
            with _CALLS_LOCK.current:
                _CALLS.retries[name] += 1
            error = state.outcome.exception() if state.outcome else None
            _log.warning("%s failed, retrying in %.2f s: %s", name, state.upcoming_sleep, error)

        retrying = Retrying(
            retry=retry_if_exception(is_transient),
            stop=deadline_is_near,
            wait=self._wait_s,
            before_sleep=note,
            sleep=self._clock.sleep,
            reraise=True,
        )
        return retrying(next_attempt)

    def _wait_s(self, state: RetryCallState) -> float:
        doublings = min(state.attempt_number - 1, 63)
        bound = min(self._policy.max_wait_s, self._policy.first_wait_s * 2**doublings)
        return _RANDOM.uniform(0, bound)


@dataclass(eq=False)
class RetryingFileSystem:
    """Retries calls of another file system that provably changed nothing or are repeatable.

    Output streams are passed through: the adapter retries parts of a stream, and a whole stream can't be
    retried. A failed read resumes after the last byte received. The adapter must not retry whole calls itself.
    """

    inner: FileSystem
    policy: InitVar[RetryPolicy]
    _: KW_ONLY
    clock: InitVar[Clock] = SYSTEM_CLOCK
    retrier: Retrier = field(init=False)

    def __post_init__(self, policy: RetryPolicy, clock: Clock) -> None:
        self.retrier = Retrier(policy, clock=clock)

    @property
    def retries(self) -> Counter[str]:
        """Number of retries of each method since the process started."""
        return self.retrier.counts

    def prepare_directory(self, uri: str, /) -> None:
        self.retrier.call("prepare_directory", lambda: self.inner.prepare_directory(uri))

    def create(self, uri: str, /) -> FileOutputStream:
        return self.retrier.call("create", lambda: self.inner.create(uri))

    def open(self, uri: str, /) -> BinaryIO:
        return cast("BinaryIO", _RetryingInputStream(self, uri))

    @property
    def range_requests(self) -> int:
        """Maximum number of ranges that are read at a time."""
        inner = self.inner
        return inner.range_requests if isinstance(inner, RangedFileSystem) else _OPEN_FILES

    def read_range(self, uri: str, start: int, end: int, /) -> memoryview:
        """Read a part of a file, as `RangedFileSystem`; a store that is not one opens the file.

        An action of `map_in_parallel` that is cancelled stops before its next attempt.
        """
        inner = self.inner
        if not isinstance(inner, RangedFileSystem):
            raise_if_cancelled()
            with self.open(uri) as stream:
                stream.seek(start)
                data = memoryview(bytearray(end - start))
                return data[: fill(stream, data)]

        def attempt() -> memoryview:
            raise_if_cancelled()
            return inner.read_range(uri, start, end)

        return self.retrier.call("read_range", attempt)

    def list(self, uri: str, /) -> Iterable[FileStatus]:
        return self.retrier.call("list", lambda: list(self.inner.list(uri)))

    def delete(self, uris: Iterable[str], /) -> None:
        files = list(uris)
        if files:
            self.retrier.call("delete", lambda: self.inner.delete(files))

    def delete_empty_directory(self, uri: str, /) -> None:
        self.retrier.call("delete_empty_directory", lambda: self.inner.delete_empty_directory(uri))

    def delete_tree(self, uri: str, /) -> None:
        self.retrier.call("delete_tree", lambda: self.inner.delete_tree(uri))


@dataclass(eq=False)
class RetryingExclusiveFileSystem(RetryingFileSystem):
    """Retries calls of a store that can publish."""

    inner: ExclusiveFileSystem
    exclusive_directories: set[str] = field(default_factory=set, init=False)
    """Directories where `check_exclusive` has passed."""

    def publish(self, uri: str, data: bytes, /) -> None:
        self.retrier.publish(lambda: self.inner.publish(uri, data))


class _RetryingInputStream(PositionedInputStream):
    """A file that is reopened at its position after a failed read."""

    def __init__(self, file_system: RetryingFileSystem, uri: str) -> None:
        self._file_system = file_system
        self._uri = uri
        self._raw: BinaryIO | None = None
        self._use("open", lambda _raw: None)  # so that a missing file is reported at once

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        def move(raw: BinaryIO) -> int:
            if whence == io.SEEK_END:
                base = raw.seek(0, io.SEEK_END)
            else:
                base = self._position if whence == io.SEEK_CUR else 0
            if base + offset < 0:
                raise InvalidRequestError(f"position {base + offset} is negative", self._uri)
            self._position = raw.seek(base + offset)
            return self._position

        return self._use("seek", move)

    def readinto(self, buffer: BytesLike, /) -> int:  # type: ignore[override]  # 3.11 has no Buffer
        def fill(raw: BinaryIO) -> int:
            count = int(raw.readinto(buffer))  # type: ignore[attr-defined]  # every raw stream has it
            self._position += count
            return count

        return self._use("read", fill)

    def close(self) -> None:
        self._forget()
        super().close()

    def _use(self, name: str, action: Callable[[BinaryIO], _Result]) -> _Result:
        """Do something with the file, which is opened again after an error."""
        if self.closed:
            raise StreamClosedError("stream is closed", self._uri)

        def attempt() -> _Result:
            try:
                if self._raw is None:
                    self._raw = self._file_system.inner.open(self._uri)
                    self._raw.seek(self._position)
                return action(self._raw)
            except BaseException as error:
                self._forget()  # after an error or interrupt it may be ahead of the position
                if isinstance(error, OSError):
                    message = f"file can't be read ({error.strerror or error})"
                    raise StorageUnavailableError(message, self._uri) from error
                raise

        return self._file_system.retrier.call(name, attempt)

    def _forget(self) -> None:
        raw, self._raw = self._raw, None
        if raw is not None:
            with suppress(OSError, CheckpointError):  # it was only read from
                raw.close()
