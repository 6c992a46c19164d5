"""Calls that end in time, whatever the library does inside of them."""

import os
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

_Result = TypeVar("_Result")

_idle: deque["_Worker"] = deque()
os.register_at_fork(after_in_child=_idle.clear)  # threads that are not in the child


def bounded(call: Callable[[], _Result], seconds: float) -> _Result:
    """The result of a call that ends within that many seconds.

    Raises:
        TimeoutError: The call took longer. It goes on in a thread of its own, which does not keep the
            process from ending.
    """
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
        worker.start()
    done: SimpleQueue[tuple[_Result | None, BaseException | None]] = SimpleQueue()
    worker.jobs.put((call, done))
    try:
        result, error = done.get(timeout=seconds)
    except Empty:
        message = f"no answer in {seconds:g} s"
        raise TimeoutError(message) from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # it has come to its end


class _Worker(threading.Thread):
    """Runs one call after the other; a new thread for each would cost more than the calls."""

    def __init__(self) -> None:
        super().__init__(name="holdfast-hdfs", daemon=True)
        self.jobs: SimpleQueue[tuple[Callable[[], Any], SimpleQueue[Any]]] = SimpleQueue()

    def run(self) -> None:
        while True:
            call, done = self.jobs.get()
            outcome: tuple[Any, BaseException | None]
            try:
                outcome = (call(), None)
            except BaseException as error:  # noqa: BLE001  # it is the caller's
                outcome = (None, error)
            del call
            _idle.append(self)
            done.put(outcome)
            del done, outcome
