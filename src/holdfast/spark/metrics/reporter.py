"""The thread of a process that turns events of its jobs into metrics and spans, off the path of batches."""

import atexit
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from holdfast.common import Clock, ProcessCache
from holdfast.errors import InvalidRequestError
from holdfast.locations.file_systems import StoreCalls, store_calls_of_process
from holdfast.spark.metrics.definitions import METRICS_DROPPED, METRICS_ERRORS
from holdfast.spark.metrics.values import MetricValues, Sample
from holdfast.spark.settings import MetricsSettings

if TYPE_CHECKING:
    from holdfast.spark.metrics.opentelemetry import MetricExport, SpanExport

_log = logging.getLogger(__name__)

MAX_EVENTS = 100
"""Events that wait; they refer to the metadata of their checkpoints. Later ones are dropped and counted."""

EXIT_TIMEOUT_S = 5.0


class Reporter:
    """Runs work on one daemon thread, and writes the metrics to their destinations once in an interval.

    No method raises an error of that work. Errors are counted, and those of one kind are logged once.

    Attributes:
        exports: Receive each sample of a histogram.
        flushes: Called when the process ends.
    """

    def __init__(self, *, max_events: int = MAX_EVENTS) -> None:
        self.values = MetricValues()
        self.exports: list[MetricExport] = []
        self.flushes: list[Callable[[], None]] = []
        self._dropped = 0
        self._errors = 0
        self._logged: set[tuple[str, type[BaseException]]] = set()
        self._events: queue.Queue[tuple[str, Callable[[], None]] | None] = queue.Queue(max_events)
        self._outputs: dict[str, _Output] = {}
        self._known_calls = StoreCalls()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, name: str, work: Callable[[], None]) -> None:
        """Run work later; it is dropped if too much waits. `name` is for the log."""
        try:
            self._events.put_nowait((name, work))
            self._start()
        except queue.Full:
            self._dropped += 1
        except RuntimeError:  # no thread can be started: Python is exiting, or a limit is reached
            self._errors += 1

    def record(self, samples: Iterable[Sample]) -> None:
        """Record samples; called by work."""
        known = list(samples)
        known += [
            Sample(METRICS_DROPPED, (), self._dropped),
            Sample(METRICS_ERRORS, (), self._errors),
        ]
        self.values.record(known)
        for export in self.exports:
            export.record(known)

    def take_store_calls(self) -> StoreCalls:
        """Return the driver's calls of stores since the last time; called by work."""
        known, self._known_calls = self._known_calls, store_calls_of_process()
        return self._known_calls - known

    def add_output(
        self, key: str, write: Callable[[], None], interval_s: float, clock: Clock
    ) -> None:
        """Write to a destination once in an interval, and when the process ends; a key is added once."""
        with self._lock:
            self._outputs.setdefault(key, _Output(key, write, interval_s, clock))

    def wait(self) -> None:
        """Wait until all work that was submitted so far has run, and outputs that are due are written."""
        self._events.join()

    def close(self) -> None:
        """Run the remaining work and write all outputs, for a limited time; for the end of the process."""
        if self._thread is None:
            return
        try:
            self._events.put(None, timeout=EXIT_TIMEOUT_S)
        except queue.Full:
            return
        self._thread.join(EXIT_TIMEOUT_S)

    def _start(self) -> None:
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    thread = threading.Thread(
                        target=self._run, name="holdfast-metrics", daemon=True
                    )
                    thread.start()
                    self._thread = thread

    def _run(self) -> None:
        while True:
            try:
                event = self._events.get(timeout=1.0)
            except queue.Empty:
                self._write_outputs()
                continue
            try:
                if event is None:
                    self._write_outputs(all_of_them=True)
                    for flush in self.flushes:
                        self._attempt("flush", flush)
                    return
                self._attempt(*event)
                self._write_outputs()
            finally:
                self._events.task_done()

    def _write_outputs(self, *, all_of_them: bool = False) -> None:
        for output in list(self._outputs.values()):
            if all_of_them or output.is_due():
                self._attempt(output.key, output.write)

    def _attempt(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  # metrics never fail a job
            self._errors += 1
            self.values.record([Sample(METRICS_ERRORS, (), self._errors)])
            if (name, type(error)) not in self._logged:
                self._logged.add((name, type(error)))
                message = "metrics: %s failed; further errors like this are only counted"
                _log.warning(message, name, exc_info=True)


class _Output:
    """A destination that is written once in an interval."""

    def __init__(
        self, key: str, write: Callable[[], None], interval_s: float, clock: Clock
    ) -> None:
        self.key = key
        self.write = write
        self._interval_s = interval_s
        self._clock = clock
        self._next_s = clock.monotonic_s()

    def is_due(self) -> bool:
        """Return whether the interval has passed; the next one begins then."""
        now_s = self._clock.monotonic_s()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + self._interval_s
        return True


_PROCESS: ProcessCache[None, Reporter] = ProcessCache()
_SERVERS: ProcessCache[tuple[str, tuple[int, int]], int] = ProcessCache()
_METRIC_EXPORTS: "ProcessCache[str, MetricExport]" = ProcessCache()
_SPAN_EXPORTS: "ProcessCache[str, SpanExport]" = ProcessCache()


def process_reporter() -> Reporter:
    """Return the reporter of this process."""

    def make() -> Reporter:
        reporter = Reporter()
        atexit.register(reporter.close)
        return reporter

    return _PROCESS.get(None, make)


def open_destinations(
    settings: MetricsSettings, job_id: str, reporter: Reporter, clock: Clock
) -> "SpanExport | None":
    """Open the destinations of metrics, unless a query of this process has done so. Returns that of spans.

    Raises:
        InvalidRequestError: A package is missing, or the port is not free.
    """
    values = reporter.values
    if settings.ports or settings.textfile or settings.pushgateway:
        with _requires_extra("prometheus_client"):
            from holdfast.spark.metrics import prometheus  # noqa: PLC0415  # optional
        if settings.ports:
            key = (settings.address, settings.ports)
            port = _SERVERS.get(key, lambda: prometheus.serve(values, *key))
            _log.info("metrics: http://%s:%d/metrics", settings.address, port)
        if path := settings.textfile:
            write = partial(prometheus.write_textfile, values, path)
            reporter.add_output(f"textfile {path}", write, settings.interval_s, clock)
        if url := settings.pushgateway:
            write = partial(prometheus.push, values, url, job_id)
            reporter.add_output(f"push of job {job_id} to {url}", write, settings.interval_s, clock)
    if not (settings.otlp_endpoint or settings.spans_endpoint):
        return None
    with _requires_extra("opentelemetry"):
        from holdfast.spark.metrics import opentelemetry  # noqa: PLC0415  # optional
    if endpoint := settings.otlp_endpoint:
        open_metrics = opentelemetry.MetricExport.to_endpoint
        make = partial(open_metrics, values, endpoint, settings.interval_s)
        export = _METRIC_EXPORTS.get(endpoint, make)
        if export not in reporter.exports:
            reporter.exports.append(export)
            reporter.flushes.append(export.flush)
    if endpoint := settings.spans_endpoint:
        spans = _SPAN_EXPORTS.get(endpoint, partial(opentelemetry.SpanExport.to_endpoint, endpoint))
        if spans.flush not in reporter.flushes:
            reporter.flushes.append(spans.flush)
        return spans
    return None


@contextmanager
def _requires_extra(module: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module:
            raise
        raise InvalidRequestError(
            f"the settings spark.holdfast.metrics.* need {module}, which is not installed on the driver: "
            "pip install 'holdfast[metrics]'",
            kind="missing-package",
        ) from error
