"""The modes of `transformWithState`, checked as Spark does."""

from typing import Literal

from pyspark.errors import AnalysisException, IllegalArgumentException

TimeMode = Literal["none", "processingtime", "eventtime"]

TIME_MODES: dict[TimeMode, Literal["none", "processing", "event"]] = {
    "none": "none",
    "processingtime": "processing",
    "eventtime": "event",
}
"""What Holdfast calls them."""


def check_output_mode(mode: str) -> None:
    """Refuse an output mode that Spark refuses. Raises `AnalysisException`, `IllegalArgumentException`."""
    if mode.lower() == "complete":
        message = (
            "[STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION] Invalid streaming output mode: complete. This output "
            "mode is not supported for transformWithState."
        )
        raise AnalysisException(message)
    if mode.lower() not in ("append", "update"):
        message = f"[STREAMING_OUTPUT_MODE.INVALID] Invalid streaming output mode: {mode}."
        raise IllegalArgumentException(message)


def checked_time_mode(mode: str) -> TimeMode:
    """The time mode of that name, in whatever case. Raises `IllegalArgumentException`."""
    for known in TIME_MODES:
        if mode.lower() == known:
            return known
    message = (
        f"[STATEFUL_PROCESSOR_UNKNOWN_TIME_MODE] Unknown time mode {mode}. Accepted timeMode modes are 'none', "
        "'processingTime', 'eventTime'"
    )
    raise IllegalArgumentException(message)
