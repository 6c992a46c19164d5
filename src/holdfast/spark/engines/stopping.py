"""A query of a classic session that is stopped in the middle of a batch: what then is raised, and heard.

`query.stop()` cancels the jobs of the query, and interrupts its thread in the JVM; so a call that the
batch makes there fails. Spark has to recognise this in what comes back from `foreachBatch`, or the query
has failed (`StreamExecution.isInterruptionException`). It gets no more than the text of the Python error,
and searches that for `PROXY_ERROR`, a pattern that takes some of Java's stack for each character: the
stack trace of the cancelled job is enough for a `StackOverflowError`. A short text is recognised.
"""

import logging
from collections.abc import Iterator

from pyspark.errors.exceptions.captured import CapturedException

from holdfast.errors import CheckpointError

_INTERRUPTIONS = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)
"""Java's names, as in Spark's `IO_EXCEPTION_NAMES`."""


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
