"""Actions of another thread at each step of a call, one step at a time."""

import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import holdfast.locations


class Interleaved:
    """The outcome of a call during which another thread acted, before its n-th line of code.

    Args:
        call: The call that is interrupted.
        action: The action of the other thread.
        step: Number of counted lines before the other thread acts.
        code: Prefixes of the paths of source files whose lines count; by default the folder of
            `holdfast.locations`.

    Attributes:
        reached: Whether the call had enough lines.
        result: Value that the call returned.
        error: Error that the call raised.
    """

    def __init__(
        self,
        call: Callable[[], Any],
        action: Callable[[], object],
        step: int,
        *,
        code: tuple[str, ...] = (),
    ) -> None:
        self.reached = False
        self.result: Any = None
        self.error: Exception | None = None
        self._lines_left = step
        self._code = code or _OWN_CODE
        self._other = threading.Thread(target=action)
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            self.result = call()
        except Exception as error:  # noqa: BLE001  # the test inspects it
            self.error = error
        finally:
            sys.settrace(before)
        if self.reached:
            self._other.join()

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(self._code):
            return None
        if event == "line" and not self.reached:
            self._lines_left -= 1
            if self._lines_left < 0:
                self.reached = True
                self._other.start()
                # It can't end while the call holds a lock that it needs; then both continue.
                self._other.join(0.1)
        return self._trace


def at_every_step(
    prepare: Callable[[], tuple[Callable[[], Any], Callable[[], object]]],
    check: Callable[[Interleaved], None],
    *,
    code: tuple[str, ...] = (),
) -> None:
    """Run a fresh call and action for each line of the call.

    Args:
        prepare: Makes the call and the action of the other thread.
        check: Called with the outcome of each run.
        code: Code whose lines count, as in `Interleaved`.
    """
    step = 0
    while True:
        outcome = Interleaved(*prepare(), step, code=code)
        if not outcome.reached:
            assert step > 0, "no line of the call is in the code that counts"
            return
        check(outcome)
        step += 1


def code_of(*objects: object) -> tuple[str, ...]:
    """Return our code, and that of the objects' classes: the folder of their package, or their module."""
    paths = list(_OWN_CODE)
    for value in objects:
        for base in type(value).__mro__:
            module = sys.modules.get(base.__module__)
            file = getattr(module, "__file__", None)
            if file and base.__module__.partition(".")[0] not in sys.stdlib_module_names:
                in_package = bool(getattr(module, "__package__", ""))
                paths.append(os.path.dirname(file) + os.sep if in_package else file)
    return tuple(dict.fromkeys(paths))


_OWN_CODE = tuple(folder + os.sep for folder in holdfast.locations.__path__)
