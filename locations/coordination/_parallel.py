"""Do something with many files, some at a time."""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import TypeVar

_AT_A_TIME = 8

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def in_parallel(action: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """Do it with every item, some at a time; the results in order, or a failure at once."""
    pool = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="holdfast-files")
    try:
        # In a copy of the context: the deadline of retries is in it.
        running = [pool.submit(copy_context().run, action, item) for item in items]
        done, _ = wait(running, return_when=FIRST_EXCEPTION)
        failure = next((error for one in done if (error := one.exception())), None)
        if failure is not None:
            raise failure
        return [one.result() for one in running]
    finally:
        pool.shutdown(cancel_futures=True)  # after a failure the rest is of no use
