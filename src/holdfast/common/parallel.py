"""Actions on many items: several at a time, or all of them however many fail."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
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

from holdfast.errors import CheckpointError, StorageUnavailableError

_MAX_THREADS = 8

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")

_cancelled: ContextVar[tuple[threading.Event, ...]] = ContextVar("_cancelled", default=())


class ContextPool(ThreadPoolExecutor):
    """A pool whose threads run in the submitter's context, which holds the deadline of retries."""

    def submit(
        self,
        action: Callable[_Arguments, _Result],
        /,
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> Future[_Result]:
        """Start an action. Raises RuntimeError if the pool is shut down or Python is exiting."""
        context = copy_context()
        return super().submit(lambda: context.run(action, *args, **kwargs))


class CancellingPool(ContextPool):
    """A pool for a `with` block, whose end cancels the actions that still run and waits for them.

    A long action calls `raise_if_cancelled` from time to time.
    """

    def __init__(self, max_threads: int) -> None:
        super().__init__(max_threads, thread_name_prefix="holdfast")
        self._has_ended = threading.Event()

    def submit(
        self,
        action: Callable[_Arguments, _Result],
        /,
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> Future[_Result]:
        """Start an action. Raises `StorageUnavailableError` if Python is exiting."""
        token = _cancelled.set((*_cancelled.get(), self._has_ended))
        try:
            return super().submit(action, *args, **kwargs)
        except RuntimeError as error:
            message = "can't start threads because Python is exiting; try again later"
            raise StorageUnavailableError(message) from error
        finally:
            _cancelled.reset(token)

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        self.shutdown(cancel_futures=True)


def map_in_parallel(
    action: Callable[[_Item], _Result], items: Sequence[_Item], *, max_threads: int = _MAX_THREADS
) -> list[_Result]:
    """Call an action with every item in several threads; returns the results in order.

    The first failure is raised at once. No action is running when this returns; a long action calls
    `raise_if_cancelled` from time to time. A single item is processed in the caller's thread, because starting a
    thread costs more than reading a small file.

    Raises:
        StorageUnavailableError: No threads can be started, because Python is exiting.
    """
    if len(items) == 1:
        return [action(items[0])]
    with _start_all(action, items, max_threads) as futures:
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        failure = next((error for future in done if (error := future.exception())), None)
        if failure is not None:
            raise failure
        return [future.result() for future in futures]


def map_as_completed(
    action: Callable[[_Item], _Result], items: Sequence[_Item], *, max_threads: int = _MAX_THREADS
) -> Iterator[_Result]:
    """Call an action with every item as `map_in_parallel` does, and yield each result once it is complete."""
    with _start_all(action, items, max_threads) as futures:
        for future in as_completed(futures):
            yield future.result()


def raise_if_cancelled() -> None:
    """Stop an action whose result is no longer needed: another action has failed, or its block has ended.

    Raises:
        CancelledError: The result is no longer needed.
    """
    if any(event.is_set() for event in _cancelled.get()):
        raise CancelledError


def collect_failures(
    action: Callable[[_Item], object], items: Iterable[_Item]
) -> list[CheckpointError]:
    """Call an action with every item, one by one; returns the failures, in order."""
    failures = []
    for item in items:
        try:
            action(item)
        except CheckpointError as failure:
            failures.append(failure)
    return failures


def raise_first(failures: list[CheckpointError]) -> None:
    """Raise the first failure, if there is one."""
    if failures:
        raise failures[0]


@contextmanager
def _start_all(
    action: Callable[[_Item], _Result], items: Sequence[_Item], max_threads: int
) -> Iterator[list[Future[_Result]]]:
    """Start the action with all items, and cancel those that still run when the block ends."""
    with CancellingPool(max_threads) as pool:
        # Processing the items here if no threads can be started would delay the end of the process.
        yield [pool.submit(action, item) for item in items]
