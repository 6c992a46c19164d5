"""Do something with many files, some at a time."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from contextvars import Context, ContextVar, copy_context
from typing import TypeVar

_AT_A_TIME = 8

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_given_up: ContextVar[threading.Event | None] = ContextVar("_given_up", default=None)


def in_parallel(action: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """Do it with every item, some at a time; the results in order, or a failure at once.

    It returns when none is being done any more. What takes long calls `check_wanted` now and then.
    """
    given_up = threading.Event()
    pool = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="holdfast-files")
    try:
        running = [pool.submit(_context(given_up).run, action, item) for item in items]
        done, _ = wait(running, return_when=FIRST_EXCEPTION)
        failure = next((error for one in done if (error := one.exception())), None)
        if failure is not None:
            raise failure
        return [one.result() for one in running]
    finally:
        given_up.set()
        pool.shutdown(cancel_futures=True)  # after a failure the rest is of no use


def check_wanted() -> None:
    """Stop here if this is done in parallel with something that has failed, or was interrupted.

    Raises:
        CancelledError: Nobody waits for it any more.
    """
    given_up = _given_up.get()
    if given_up is not None and given_up.is_set():
        raise CancelledError


def _context(given_up: threading.Event) -> Context:
    """A copy of the context, in which the deadline of retries is, with this event in it."""
    context = copy_context()
    context.run(_given_up.set, given_up)
    return context
