"""The one place that repeats what failed: around single calls, until a deadline."""

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception

from holdfast.common import SYSTEM_CLOCK, Clock
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageFullError,
    StorageUnavailableError,
)

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

_RANDOM = Random()  # noqa: S311  # of its own: a program that seeds Python's draws what it always drew

ABORT_DEADLINE_S = 10.0
"""How long a stream that is given up tries to leave nothing behind."""


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
def retry_deadline(seconds: float, *, clock: Clock = SYSTEM_CLOCK) -> Iterator[None]:
    """Repeat nothing in this block, on this thread, after that many seconds from now.

    For work that makes many calls: each has a deadline of its own otherwise, and they add up.
    """
    token = _UNTIL.set(min(_UNTIL.get(), clock.monotonic_s() + seconds))
    try:
        yield
    finally:
        _UNTIL.reset(token)


class Retrier:
    """Repeats what fails, as a policy says; logs and counts it.

    Args:
        policy: When to give up.
        clock: Tells how much time is left, and waits.
    """

    def __init__(self, policy: RetryPolicy, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._policy = policy
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> Counter[str]:
        """How often each call was repeated since the process began."""
        with self._lock:
            return Counter(self._counts)

    def publish(self, attempt: Callable[[], None]) -> None:
        """Repeat as `call` does what makes a file appear, of which the outcome may be unknown.

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
            self.call("publish", noted, is_transient=_may_be_repeated)
        except CheckpointConflictError:
            raise
        except CheckpointError as error:
            if unknown and unknown[0] is not error:  # an earlier attempt may have done it
                raise unknown[0] from error
            raise

    def call(
        self,
        name: str,
        attempt: Callable[[], _Result],
        *,
        is_transient: Callable[[BaseException], bool] | None = None,
    ) -> _Result:
        """Repeat a call until it is done, fails for good, or takes too long; the last error is raised."""
        is_transient = is_transient or _changed_nothing
        end = min(self._clock.monotonic_s() + self._policy.deadline_s, _UNTIL.get())
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
            return self._clock.monotonic_s() + state.upcoming_sleep >= end

        def note(state: RetryCallState) -> None:
            with self._lock:
                self._counts[name] += 1
            error = state.outcome.exception() if state.outcome else None
            _log.warning(
                "%s failed and is tried again in %.2f s: %s", name, state.upcoming_sleep, error
            )

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
        bound = min(self._policy.longest_wait_s, self._policy.first_wait_s * 2**doublings)
        return _RANDOM.uniform(0, bound)


def _changed_nothing(error: BaseException) -> bool:
    # No room is not for us to make, and waiting seldom does.
    return isinstance(error, StorageUnavailableError) and not isinstance(error, StorageFullError)


def _may_be_repeated(error: BaseException) -> bool:
    return _changed_nothing(error) or isinstance(error, OutcomeUnknownError)
