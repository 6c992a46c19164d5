"""What an error keeps in memory."""

from contextlib import suppress
from traceback import walk_tb
from types import FrameType


def let_go_of_variables(error: BaseException | None) -> None:
    """Keep the lines of an error's tracebacks, but not what its frames held that are done.

    botocore and tenacity keep errors in variables of frames that the errors lead to. Such a
    circle, and buffers of many megabytes that its frames know, would stay until a collection.
    """
    while error is not None:
        for frame, _ in walk_tb(error.__traceback__):
            _clear_with_callers(frame)
        error = error.__cause__ or error.__context__


def _clear_with_callers(frame: FrameType | None) -> None:
    # Callers too: one that got the error returned is in no traceback, and knows it all the same.
    with suppress(RuntimeError):  # this one still runs, and so do its callers
        while frame is not None:
            frame.clear()
            frame = frame.f_back
