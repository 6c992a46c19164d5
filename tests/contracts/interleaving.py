"""Do something in another thread at each step of a call, one step after the other."""

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import holdfast.locations

_FOLDER = holdfast.locations.__path__[0]


class Interleaved:
    """The outcome of a call in whose n-th line of our code another thread acted.

    Attributes:
        reached: Whether the call had that many lines.
        result: What it returned.
        error: What it raised.
    """

    def __init__(self, call: Callable[[], Any], action: Callable[[], object], step: int) -> None:
        self.reached = False
        self.result: Any = None
        self.error: Exception | None = None
        self._lines_left = step
        self._other = threading.Thread(target=action)
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            self.result = call()
        except Exception as error:  # noqa: BLE001  # whatever it is, the test looks at it
            self.error = error
        finally:
            sys.settrace(before)
        if self.reached:
            self._other.join()

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(_FOLDER):
            return None
        if event == "line" and not self.reached:
            self._lines_left -= 1
            if self._lines_left < 0:
                self.reached = True
                self._other.start()
                # It can't end while the call holds a lock that it needs; then both go on.
                self._other.join(0.1)
        return self._trace


def at_every_step(
    prepare: Callable[[], tuple[Callable[[], Any], Callable[[], object]]],
    check: Callable[[Interleaved], None],
) -> None:
    """Run a fresh call and action for each line of the call.

    Args:
        prepare: Makes the call and what the other thread does.
        check: Told the outcome of each.
    """
    step = 0
    while True:
        outcome = Interleaved(*prepare(), step)
        if not outcome.reached:
            assert step > 0, "nothing was traced"
            return
        check(outcome)
        step += 1
