"""Actions that run several at a time."""

import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextvars import ContextVar

import pytest
from contracts.patience import HANGS_S

from holdfast.common import (
    CancellingPool,
    ContextPool,
    map_as_completed,
    map_in_parallel,
    raise_if_cancelled,
)
from holdfast.errors import StorageUnavailableError

_here: ContextVar[str] = ContextVar("_here", default="elsewhere")


def test_results_are_in_order() -> None:
    raise_if_cancelled()
    assert map_in_parallel(lambda number: number * 2, range(20)) == [*range(0, 40, 2)]


def test_running_actions_end_when_another_one_fails() -> None:
    ended = threading.Event()
    has_started = threading.Event()

    def action(number: int) -> None:
        if number == 0:
            assert has_started.wait(HANGS_S)
            raise ValueError("as planned")
        has_started.set()
        try:
            while True:
                raise_if_cancelled()
                threading.Event().wait(0.001)
        except CancelledError:
            ended.set()
            raise

    with pytest.raises(ValueError, match="as planned"):
        map_in_parallel(action, [0, 1])
    assert ended.is_set()


def test_end_of_a_pool_cancels_actions_of_its_actions() -> None:
    has_started = threading.Barrier(3)

    def wait_for_cancellation(_: int) -> None:
        has_started.wait(HANGS_S)
        while True:
            raise_if_cancelled()
            threading.Event().wait(0.001)

    with CancellingPool(1) as pool:
        future = pool.submit(map_in_parallel, wait_for_cancellation, [0, 1])
        has_started.wait(HANGS_S)
    with pytest.raises(CancelledError):
        future.result()
    raise_if_cancelled()


def test_actions_run_in_the_context_of_the_caller() -> None:
    before = _here.set("in the test")
    try:
        with ContextPool(1) as pool:
            seen = [pool.submit(_here.get).result(), *pool.map(lambda _: _here.get(), range(2))]
        seen += map_in_parallel(lambda _: _here.get(), range(2))
        seen += map_as_completed(lambda _: _here.get(), range(2))
    finally:
        _here.reset(before)
    assert set(seen) == {"in the test"}


def test_results_are_yielded_on_completion_and_the_rest_is_cancelled() -> None:
    ended = threading.Event()
    is_done = threading.Event()

    def action(number: int) -> int:
        if number == 1:
            return number
        is_done.wait(HANGS_S)
        try:
            while True:
                raise_if_cancelled()
                threading.Event().wait(0.001)
        finally:
            ended.set()

    results = map_as_completed(action, [0, 1])
    assert next(results) == 1
    is_done.set()
    results.close()  # type: ignore[attr-defined]  # a generator
    assert ended.is_set()


def test_exiting_python_differs_from_a_bug_of_an_action(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bug(_: int) -> None:
        raise NotImplementedError("a RuntimeError to Python")

    with pytest.raises(NotImplementedError):
        map_in_parallel(bug, [0, 1])

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    with pytest.raises(StorageUnavailableError, match="threads"):
        map_in_parallel(bug, [0, 1])


def test_single_item_is_processed_in_the_callers_thread() -> None:
    assert map_in_parallel(lambda _: threading.current_thread(), [0]) == [
        threading.current_thread()
    ]
