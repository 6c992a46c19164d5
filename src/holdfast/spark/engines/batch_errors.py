"""Errors that end a batch, as they are raised to Spark and logged.

An error that Holdfast raises in a task reaches the driver as the text of a traceback, with the message as one line of
many. The driver raises the error itself instead (`error_of_task`).

A query can also be stopped in the middle of a batch. `query.stop()` cancels the jobs of the query and interrupts its
thread in the JVM, so that calls of the batch there fail. Spark has to recognize this in the error of `foreachBatch`,
or it counts the query as failed (`StreamExecution.isInterruptionException`). It receives only the text of the Python
error, and searches it for `PROXY_ERROR`, a pattern that needs some of Java's stack for each character: the stack trace
of the cancelled job causes a `StackOverflowError`. A short text is recognized.
"""

import logging
import re
from collections.abc import Iterator

from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import CapturedException

from holdfast import errors
from holdfast.errors import CheckpointError
from holdfast.spark.compat import java_stack_trace

_INTERRUPTIONS = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)
"""Java's names, as in Spark's `IO_EXCEPTION_NAMES`."""

_HOLDFAST_ERROR_AT_END = re.compile(
    rf"^{re.escape(errors.__name__)}\.(?P<name>\w+): (?P<message>(?:(?!^  File ).)+?)(?: \[HF-(?P<kind>[A-Z-]+)\])?(?:\s+SQLSTATE: \w+)?\s*\Z",
    re.MULTILINE | re.DOTALL,
)
"""The last lines of a traceback whose last error is ours: no line of code follows it."""


class QueryStoppedError(Exception):
    """The query was stopped in the middle of the batch."""

    def __init__(self) -> None:
        super().__init__(
            "the query was stopped in the middle of a batch, which is repeated when it is started again "
            f"(py4j.protocol.Py4JJavaError: An error occurred while calling it: {_INTERRUPTIONS[0]})"
        )


def is_interruption(error: BaseException, run_id: str) -> bool:
    """Return whether an error was caused by a cancelled job of the run, or by an interrupted thread."""
    return any(
        any(name in text for name in _INTERRUPTIONS) or ("cancelled" in text and run_id in text)
        for text in map(_text, _chain(error))
    )


def error_of_task(error: BaseException) -> CheckpointError | None:
    """Return the Holdfast error that ended a task, from Spark's error on the driver; None if another error did.

    Spark logs the traceback of the task where the task ran.
    """
    if not isinstance(error, PySparkException):
        return None
    match = _HOLDFAST_ERROR_AT_END.search(str(error).partition("\n\tat ")[0])
    error_class = getattr(errors, match["name"], None) if match else None
    if match is None or not (
        isinstance(error_class, type) and issubclass(error_class, CheckpointError)
    ):
        return None
    return error_class(match["message"], kind=(match["kind"] or "").lower())


def filter_py4j_log() -> None:
    """Prevent py4j from logging Holdfast errors with a traceback: Spark logs and raises them anyway."""
    # Adding the same filter a second time changes nothing.
    logging.getLogger("py4j.clientserver").addFilter(_is_foreign)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes, as a traceback shows them."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        yield error
        seen.append(error)
        hidden = error.__cause__ is not None or error.__suppress_context__
        error = error.__cause__ if hidden else error.__context__


def _text(error: BaseException) -> str:
    """Return the text of an error, with the stack trace of the JVM."""
    if isinstance(error, CapturedException):
        return java_stack_trace(error)  # not in its text by default
    return str(error)


def _is_foreign(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, QueryStoppedError | CheckpointError)
