"""Values and locks of a process."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from contracts.patience import HANGS_S
from contracts.processes import of_many_threads, run_in_fork

from holdfast.common import ProcessCache, ProcessLock, json_decoder


def test_value_is_made_once_for_each_key_until_it_is_dropped() -> None:
    cache: ProcessCache[str, object] = ProcessCache()
    first = cache.get("a", object)
    assert cache.get("a", object) is first
    assert cache.get("b", object) is not first
    cache.drop("a")
    cache.drop("never made")
    assert cache.get("a", object) is not first


def test_none_is_a_value() -> None:
    cache: ProcessCache[str, None] = ProcessCache()
    made: list[str] = []
    for _ in range(2):
        cache.get("a", lambda: made.append("a"))
    assert made == ["a"]


def test_failed_value_is_made_again() -> None:
    cache: ProcessCache[str, int] = ProcessCache()

    def fail() -> int:
        raise ValueError("as planned")

    with pytest.raises(ValueError, match="as planned"):
        cache.get("a", fail)
    assert cache.get("a", lambda: 1) == 1


def test_concurrent_threads_get_the_same_value() -> None:
    cache: ProcessCache[str, object] = ProcessCache()
    all_ask = threading.Barrier(4)

    def ask(_: int) -> object:
        all_ask.wait(HANGS_S)
        return cache.get("a", object)

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(ask, range(4)))) == 1


def test_fork_makes_its_own_values_and_knows_of_lost_ones() -> None:
    cache: ProcessCache[str, int] = ProcessCache()
    assert cache.get("a", os.getpid) == os.getpid()

    def in_fork() -> None:
        assert cache.was_forked_with_values
        assert cache.get("a", os.getpid) == os.getpid()

    assert run_in_fork(in_fork) == 0
    assert not cache.was_forked_with_values
    assert cache.get("a", lambda: 0) == os.getpid()


def test_fork_without_values_has_lost_no_value() -> None:
    cache: ProcessCache[str, int] = ProcessCache()

    def in_fork() -> None:
        assert not cache.was_forked_with_values

    assert run_in_fork(in_fork) == 0


def test_fork_frees_no_value_of_its_parent() -> None:
    cache: ProcessCache[str, object] = ProcessCache()
    here = os.getpid()

    class Freed:
        def __del__(self) -> None:
            if os.getpid() != here:
                os._exit(3)

    cache.get("a", Freed)
    assert run_in_fork(lambda: cache.get("a", object)) == 0


@of_many_threads
def test_fork_while_a_value_is_made_does_not_hang() -> None:
    cache: ProcessCache[str, int] = ProcessCache()
    making, may_go = threading.Event(), threading.Event()

    def slowly() -> int:
        making.set()
        may_go.wait(HANGS_S)
        return 1

    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(cache.get, "a", slowly)
        assert making.wait(HANGS_S)
        try:
            assert run_in_fork(lambda: cache.get("a", lambda: 2)) == 0
        finally:
            may_go.set()
        assert made.result() == 1


def test_process_lock_of_a_thread_is_free_in_a_fork() -> None:
    lock = ProcessLock()
    held = lock.current

    def in_fork() -> None:
        assert lock.current is not held
        with lock.current:
            assert not lock.current.acquire(blocking=False)

    with held:
        assert run_in_fork(in_fork) == 0
        assert lock.current is held


@of_many_threads
def test_fork_makes_decoders_while_a_thread_makes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    making, may_end = threading.Event(), threading.Event()

    class SlowDecoder:
        def __init__(self, _: object) -> None:
            making.set()
            may_end.wait(HANGS_S)

    with ThreadPoolExecutor(1) as pool, monkeypatch.context() as patch:
        patch.setattr(msgspec.json, "Decoder", SlowDecoder)
        thread = pool.submit(json_decoder, int)
        making.wait(HANGS_S)
        patch.undo()
        assert run_in_fork(lambda: json_decoder(int).decode(b"1")) == 0
        may_end.set()
        thread.result()
