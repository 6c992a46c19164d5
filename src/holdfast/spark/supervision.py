"""Restarts of a query in its driver, after faults that can pass."""

import logging
import re
from collections import deque
from collections.abc import Callable
from datetime import timedelta

from pyspark.sql.streaming.query import StreamingQuery

from holdfast.common import SYSTEM_CLOCK, Clock
from holdfast.errors import InvalidRequestError

_log = logging.getLogger(__name__)

PASSING = frozenset(
    {
        "HF-CONTENDED",
        "HF-DECLINED",
        "HF-DELETED",
        "HF-KAFKA-FAILED",
        "HF-LOCAL-COPY",
        "HF-OUTCOME-UNKNOWN",
        "HF-RESOURCES",
        "HF-STORAGE-FULL",
        "HF-STORE-FAILED",
    }
)
"""Codes of errors that a later attempt may not have. docs/runbook.md has an entry for each."""

_CODE = re.compile(r"\[(HF-[A-Z-]+)\]")

_LASTING = re.compile(
    # Errors of Python that mean a fault of the program; faults of networks and disks have other classes.
    r"^(?:[\w.]+\.)?(?:ArithmeticError|AssertionError|AttributeError|ImportError|IndexError|KeyError|LookupError"
    r"|ModuleNotFoundError|NameError|NotImplementedError|RecursionError|SyntaxError|TypeError|UnboundLocalError"
    r"|UnicodeDecodeError|UnicodeEncodeError|ValueError|ZeroDivisionError|PicklingError|Arrow\w+): "
    # Spark's errors in the query itself, and of a session that has ended.
    r"|(?:AnalysisException|ParseException|IllegalArgumentException|ClassNotFoundException|NoSuchMethodError)"
    r"|SparkContext was shut down|stopped SparkContext",
    re.MULTILINE,
)


def run(
    start: Callable[[], StreamingQuery],
    *,
    max_restarts: int = 10,
    within: timedelta = timedelta(hours=1),
    first_delay: timedelta = timedelta(seconds=1),
    max_delay: timedelta = timedelta(minutes=1),
    is_passing: Callable[[Exception], bool] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Run a query until it ends, and start it again after faults that can pass.

        hf.run(lambda: totals.writeStream.foreachBatch(write).option(…).start())

    A fault can pass if the store or a broker was away, an executor was lost, or a batch was declined. Errors of your code,
    wrong settings, damaged files and another driver of the job end the call at once. Delays double with each restart
    within the period, up to the maximum. The restarts are in the job's history and metrics.

    Args:
        start: Starts the query; called for each attempt, in this thread. It must return a query of the same job.
        max_restarts: Maximum number of restarts within the period.
        within: The period.
        first_delay: Delay before the first restart in the period.
        max_delay: Maximum delay.
        is_passing: Decides whether a fault can pass in place of the rules above; it gets the error of `start` or of the query.
        clock: The clock of delays and of the period.

    Raises:
        Exception: The error that ended the query, if it can't pass, or if there were too many restarts.
        InvalidRequestError: An argument can't be used.
    """
    if max_restarts < 0:
        raise InvalidRequestError(f"max_restarts must be >= 0, got {max_restarts}")
    if not timedelta(0) <= first_delay <= max_delay:
        raise InvalidRequestError(
            f"delays must satisfy 0 <= first_delay <= max_delay, got {first_delay} and {max_delay}"
        )
    can_pass = is_passing or can_pass_later
    restarts: deque[float] = deque()
    while True:
        try:
            _await(start())
        except Exception as error:
            now_s = clock.monotonic_s()
            while restarts and now_s - restarts[0] > within.total_seconds():
                restarts.popleft()
            if not can_pass(error):
                raise
            if len(restarts) >= max_restarts:
                _log.error(
                    "%d restarts within %s: the query is not restarted", len(restarts), within
                )
                raise
            delay_s = min(
                first_delay.total_seconds() * 2 ** len(restarts), max_delay.total_seconds()
            )
            restarts.append(now_s)
            _log.warning(
                "the query failed, and is restarted in %.1f s (%d of at most %d restarts within %s): %s",
                delay_s,
                len(restarts),
                max_restarts,
                within,
                _summary(error),
            )
            clock.sleep(delay_s)
        else:
            return


def can_pass_later(error: Exception) -> bool:
    """Return whether a later attempt may not have this error, by its text."""
    text = str(error)
    codes = set(_CODE.findall(text))
    if codes:
        return codes <= PASSING
    return not isinstance(error, TypeError | ValueError | LookupError) and not _LASTING.search(text)


def _await(query: StreamingQuery) -> None:
    """Wait until the query ends, and stop it if this thread is interrupted."""
    try:
        query.awaitTermination()
    except BaseException:
        query.stop()
        raise


def _summary(error: Exception) -> str:
    """Return the code of an error, or its class: its text may have secrets."""
    codes = _CODE.findall(str(error))
    return codes[-1] if codes else type(error).__name__
