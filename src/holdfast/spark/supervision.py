"""Restarts of a query in its driver, after faults that can pass."""

import logging
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from pyspark.sql.streaming.query import StreamingQuery

from holdfast.common import SYSTEM_CLOCK, Clock
from holdfast.errors import InvalidRequestError
from holdfast.spark.standby import stop_on_error, wait_to_be_active

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

_OTHER_QUERY = "CONCURRENT_STREAM_LOG_UPDATE|Multiple streaming jobs detected"
"""Spark's errors of another driver that runs the same query."""

_CONTESTED = re.compile(rf"\[HF-EXISTS\]|{_OTHER_QUERY}")

_LASTING = re.compile(
    # Errors of Python that mean a fault of the program; faults of networks and disks have other classes.
    r"^(?:[\w.]+\.)?(?:ArithmeticError|AssertionError|AttributeError|ImportError|IndexError|KeyError|LookupError"
    r"|ModuleNotFoundError|NameError|NotImplementedError|RecursionError|SyntaxError|TypeError|UnboundLocalError"
    r"|UnicodeDecodeError|UnicodeEncodeError|ValueError|ZeroDivisionError|PicklingError|Arrow\w+): "
    # Spark's errors in the query itself, of another driver of the query, and of a session that has ended.
    r"|(?:AnalysisException|ParseException|IllegalArgumentException|ClassNotFoundException|NoSuchMethodError)"
    rf"|{_OTHER_QUERY}"
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
    standby_after: timedelta | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Run a query until it ends, and start it again after faults that can pass.

        hf.run(lambda: totals.writeStream.foreachBatch(write).option(…).start())

    A fault can pass if the store or a broker was away, an executor was lost, or a batch was declined. Errors of your code,
    wrong settings, damaged files and another driver of the job end the call at once. Delays double with each restart
    within the period, up to the maximum. The restarts are in the job's history and metrics.

    With `standby_after` several drivers can call it: one runs the query, and the others wait. If the active driver is lost or
    ends with an error, one of them takes over. If the query ends by itself, all calls return.

    Args:
        start: Starts the query; called for each attempt, in this thread. It must return a query of the same job.
        max_restarts: Maximum number of restarts within the period.
        within: The period.
        first_delay: Delay before the first restart in the period.
        max_delay: Maximum delay.
        is_passing: Decides whether a fault can pass in place of the rules above; it gets the error of `start` or of the query.
        standby_after: Time without a heartbeat of the active driver after which a waiting one takes over, at least 2 s; 10 s is a
            good value. If drivers of the job have different ones, the longer one counts. It requires
            `spark.holdfast.job.id`.
        clock: Measures delays and periods.

    Raises:
        Exception: The error that ended the query, if it can't pass, or if there were too many restarts.
        CheckpointConflictError: Another driver has taken over.
        InvalidRequestError: An argument or a setting can't be used.
    """
    if max_restarts < 0:
        raise InvalidRequestError(f"max_restarts must be >= 0, got {max_restarts}")
    if not timedelta(0) <= first_delay <= max_delay:
        raise InvalidRequestError(
            f"delays must satisfy 0 <= first_delay <= max_delay, got {first_delay} and {max_delay}"
        )
    restarts = _Restarts(
        max_restarts,
        within.total_seconds(),
        first_delay.total_seconds(),
        max_delay.total_seconds(),
        is_passing or (can_pass_later if standby_after is None else _can_pass_with_standbys),
        clock,
    )
    if standby_after is None:
        restarts.repeat(lambda: _await(start()))
        return
    driver = wait_to_be_active(standby_after, clock)
    if driver is not None:
        with driver:
            restarts.repeat(lambda: driver.run(start))


@dataclass(slots=True)
class _Restarts:
    """Restarts after faults that can pass, and their limits."""

    max_restarts: int
    within_s: float
    first_delay_s: float
    max_delay_s: float
    can_pass: Callable[[Exception], bool]
    clock: Clock
    times_s: deque[float] = field(default_factory=deque)

    def repeat(self, attempt: Callable[[], None]) -> None:
        """Call the function until it returns, or fails in a way that can't pass."""
        while True:
            try:
                attempt()
            except Exception as error:
                delay_s = self._delay_s(error)
                if delay_s is None:
                    raise
                self.clock.sleep(delay_s)
            else:
                return

    def _delay_s(self, error: Exception) -> float | None:
        """Return the seconds until the next attempt, which is logged; None if the error has to be raised."""
        now_s = self.clock.monotonic_s()
        while self.times_s and now_s - self.times_s[0] > self.within_s:
            self.times_s.popleft()
        if not self.can_pass(error):
            return None
        count = len(self.times_s)
        period = timedelta(seconds=self.within_s)
        if count >= self.max_restarts:
            _log.error("%d restarts within %s: the query is not restarted", count, period)
            return None
        delay_s = min(self.first_delay_s * 2.0**count, self.max_delay_s)
        self.times_s.append(now_s)
        _log.warning(
            "the query failed, and is restarted in %.1f s (%d of at most %d restarts within %s): %s",
            delay_s,
            count + 1,
            self.max_restarts,
            period,
            _summary(error),
        )
        return delay_s


def can_pass_later(error: Exception) -> bool:
    """Return whether a later attempt may not have this error, by its class and text."""
    text = f"{type(error).__name__}: {error}"
    codes = set(_CODE.findall(text))
    if codes:
        return codes <= PASSING
    return not isinstance(error, TypeError | ValueError | LookupError) and not _LASTING.search(text)


def _can_pass_with_standbys(error: Exception) -> bool:
    """Return the same as `can_pass_later` for a driver with standbys: the driver before this one may not have noticed yet that it was replaced.

    Each attempt begins with a check that this driver was not replaced itself.
    """
    return bool(_CONTESTED.search(str(error))) or can_pass_later(error)


def _await(query: StreamingQuery) -> None:
    """Wait until the query ends, and stop it if this thread is interrupted."""
    with stop_on_error(query):
        query.awaitTermination()


def _summary(error: Exception) -> str:
    """Return the code of an error, or its class: its text may have secrets."""
    codes = _CODE.findall(str(error))
    return codes[-1] if codes else type(error).__name__
