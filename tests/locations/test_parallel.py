"""Things that are done several at a time."""

import signal
import threading
from concurrent.futures import CancelledError, Future, wait
from typing import Any

import pytest

from holdfast.locations.coordination import _parallel
from holdfast.locations.coordination._parallel import check_wanted, in_parallel

LONG_S = 60.0


def test_results_are_in_order() -> None:
    check_wanted()
    assert in_parallel(lambda number: number * 2, range(20)) == [*range(0, 40, 2)]


class Endless:
    """Goes on until it isn't wanted any more; the first item does what ends that."""

    def __init__(self, failure: type[BaseException]) -> None:
        self.failure = failure
        self.all_are_given = threading.Event()
        self.begun = threading.Event()
        self.ended: list[type[BaseException]] = []

    def __call__(self, number: int) -> None:
        """Fail, interrupt the main thread, or go on."""
        if number == 0:
            assert self.begun.wait(LONG_S)
            assert self.all_are_given.wait(LONG_S)
            if self.failure is KeyboardInterrupt:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            else:
                raise self.failure
        self.begun.set()
        waits = threading.Event()
        try:
            for _ in range(round(LONG_S * 1000)):
                check_wanted()
                waits.wait(0.001)
        except CancelledError as error:
            self.ended.append(type(error))
            raise


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_what_is_being_done_ends_when_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, failure: type[BaseException]
) -> None:
    endless = Endless(failure)

    def waited(running: list[Future[None]], return_when: str) -> Any:
        endless.all_are_given.set()
        return wait(running, return_when=return_when)

    monkeypatch.setattr(_parallel, "wait", waited)
    with pytest.raises(failure):
        in_parallel(endless, [0, 1, 2])
    assert endless.ended
