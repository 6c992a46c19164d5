"""Errors that end a batch: what is raised to Spark, and what is logged.

An error that Holdfast raises in a task comes back as the text of a traceback, with the message as one line of many.
The driver raises the error itself instead (`error_of_task`).

A query can also be stopped in the middle of a batch. `query.stop()` cancels the jobs of the query, and interrupts its thread in the JVM; so a call that the
batch makes there fails. Spark has to recognise this in what comes back from `foreachBatch`, or the query
has failed (`StreamExecution.isInterruptionException`). It gets no more than the text of the Python error,
and searches that for `PROXY_ERROR`, a pattern that takes some of Java's stack for each character: the
stack trace of the cancelled job is enough for a `StackOverflowError`. A short text is recognised.
"""

import logging
import re
from collections.abc import Iterator

from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import CapturedException

from holdfast import errors
from holdfast.errors import CheckpointError

_INTERRUPTIONS = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)
"""Java's names, as in Spark's `IO_EXCEPTION_NAMES`."""

_ENDS_WITH_OURS = re.compile(
    rf"^{re.escape(errors.__name__)}\.(?P<name>\w+): (?P<message>(?:(?!^  File ).)+?)(?:\s+SQLSTATE: \w+)?\s*\Z",
    re.MULTILINE | re.DOTALL,
)
"""The last lines of a traceback whose last error is one of ours: no line of code comes after it."""


class QueryStoppedError(Exception):
    """The query was stopped in the middle of the batch."""

    def __init__(self) -> None:
        super().__init__(
            "the query was stopped in the middle of a batch, which is repeated when it is started again "
            f"(py4j.protocol.Py4JJavaError: An error occurred while calling it: {_INTERRUPTIONS[0]})"
        )


def is_interruption(error: BaseException, run_id: str) -> bool:
    """Whether an error comes of a cancelled job of the run, or of an interrupted thread."""
    return any(
        any(name in text for name in _INTERRUPTIONS) or ("cancelled" in text and run_id in text)
        for text in map(_text, _chain(error))
    )


def error_of_task(error: BaseException) -> CheckpointError | None:
    """Return the error of Holdfast that ended a task, from Spark's error on the driver; None if another one did.

    Spark logs the task's own traceback where the task ran.
    """
    if not isinstance(error, PySparkException):
        return None
    found = _ENDS_WITH_OURS.search(str(error).partition("\n\tat ")[0])
    kind = getattr(errors, found["name"], None) if found else None
    if found is None or not (isinstance(kind, type) and issubclass(kind, CheckpointError)):
        return None
    return kind(found["message"])


def keep_py4j_quiet() -> None:
    """Keep py4j from logging errors of Holdfast with a traceback: Spark logs and raises them anyway."""
    # Adding the same filter a second time changes nothing.
    logging.getLogger("py4j.clientserver").addFilter(_is_of_others)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and those that it came of, as a traceback shows them."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        yield error
        seen.append(error)
        hidden = error.__cause__ is not None or error.__suppress_context__
        error = error.__cause__ if hidden else error.__context__


def _text(error: BaseException) -> str:
    """The text of an error, with the stack trace of the JVM."""
    if isinstance(error, CapturedException):
        return str(error._stackTrace)  # noqa: SLF001  # by default its text goes without
    return str(error)


def _is_of_others(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, QueryStoppedError | CheckpointError)
