"""Actions on many items, some at a time."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_EXCEPTION,
    CancelledError,
    Future,
    ThreadPoolExecutor,
    as_completed,
    wait,
)
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import ParamSpec, TypeVar

from holdfast.errors import StorageUnavailableError

_AT_A_TIME = 8

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")

_given_up: ContextVar[threading.Event | None] = ContextVar("_given_up", default=None)


class ContextPool(ThreadPoolExecutor):
    """A pool whose threads work in the context of the submitter, which has the deadline of retries."""

    def submit(
        self,
        action: Callable[_Arguments, _Result],
        /,
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> Future[_Result]:
        """Begin an action. Raises RuntimeError once the pool was shut down or Python is ending."""
        context = copy_context()
        return super().submit(lambda: context.run(action, *args, **kwargs))


def in_parallel(
    action: Callable[[_Item], _Result], items: Sequence[_Item], *, at_a_time: int = _AT_A_TIME
) -> list[_Result]:
    """Do an action with every item, some at a time; the results in order, or a failure at once.

    A single item is done in the thread of the caller: to start another costs more than to read a small file. No action
    runs any more when this returns. An action that takes long calls `check_wanted` now and then.

    Raises:
        StorageUnavailableError: No threads start, because Python is ending.
    """
    if len(items) == 1:
        return [action(items[0])]
    with _begun(action, items, at_a_time) as running:
        done, _ = wait(running, return_when=FIRST_EXCEPTION)
        failure = next((error for ended in done if (error := ended.exception())), None)
        if failure is not None:
            raise failure
        return [ended.result() for ended in running]


def as_they_end(
    action: Callable[[_Item], _Result], items: Sequence[_Item], *, at_a_time: int = _AT_A_TIME
) -> Iterator[_Result]:
    """Do an action with every item as `in_parallel` does, and yield each result as soon as there is one."""
    with _begun(action, items, at_a_time) as running:
        for ended in as_completed(running):
            yield ended.result()


def check_wanted() -> None:
    """Stop an action that `in_parallel` runs if another one has failed, or all were interrupted.

    Raises:
        CancelledError: Nobody waits for the result any more.
    """
    given_up = _given_up.get()
    if given_up is not None and given_up.is_set():
        raise CancelledError


@contextmanager
def _begun(
    action: Callable[[_Item], _Result], items: Sequence[_Item], at_a_time: int
) -> Iterator[list[Future[_Result]]]:
    """Begin the action with all items; when the block is left, those that still run are of no use."""
    given_up = threading.Event()
    pool = ContextPool(at_a_time, thread_name_prefix="holdfast")
    before = _given_up.set(given_up)
    try:
        try:
            running = [pool.submit(action, item) for item in items]
        except RuntimeError as error:
            # To do it here, one item after the other, would hold up the end of the process.
            message = "no threads start, as when Python is ending; try again later"
            raise StorageUnavailableError(message) from error
        finally:
            _given_up.reset(before)
        yield running
    finally:
        given_up.set()
        pool.shutdown(cancel_futures=True)
