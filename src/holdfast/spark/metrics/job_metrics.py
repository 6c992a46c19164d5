"""Reports of a job to its metrics: the start of a run, completed and failed checkpoints, sweeps."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from holdfast.common import Clock
from holdfast.locations.coordination import SweepReport
from holdfast.spark.metrics import definitions as d
from holdfast.spark.metrics.reporter import Reporter, open_destinations, process_reporter
from holdfast.spark.metrics.samples import (
    CompletedBatch,
    call_samples,
    checkpoint_samples,
    lag_samples,
    state_samples,
    subtask_samples,
)
from holdfast.spark.metrics.spans import (
    FailedCheckpoint,
    Initialization,
    SpanTree,
    checkpoint_span,
    failure_span,
    initialization_span,
)
from holdfast.spark.metrics.values import Sample
from holdfast.spark.settings import MetricsSettings

if TYPE_CHECKING:
    from holdfast.spark.metrics.opentelemetry import SpanExport


@dataclass(slots=True)
class JobMetrics:
    """Metrics and spans of one run of a job. Its methods only queue; they neither raise nor wait.

    Attributes:
        spans: The destination of spans; None without a destination.
        last_progress: Returns the JSON of Spark's last progress, if it is known.
    """

    reporter: Reporter
    settings: MetricsSettings
    clock: Clock
    spans: "SpanExport | None" = None
    last_progress: Callable[[], str | None] = lambda: None
    _last_completed_ms: int = field(default=0, init=False)
    _states_due_s: float = field(default=0.0, init=False)

    @classmethod
    def open(
        cls,
        settings: MetricsSettings,
        job_id: str,
        clock: Clock,
        last_progress: Callable[[], str | None],
    ) -> Self | None:
        """Open the destinations of the settings; None without one. Raises `InvalidRequestError`."""
        if not settings.is_enabled:
            return None
        reporter = process_reporter()
        spans = open_destinations(settings, job_id, reporter, clock)
        return cls(reporter, settings, clock, spans, last_progress)

    def report_start(self, run: Initialization) -> None:
        """Report that a run was started."""

        def work() -> None:
            sample = Sample(d.INITIALIZATION_DURATION, (run.job_id,), run.duration_s)
            self.reporter.record([sample])
            if run.restored is not None and run.restored.metadata.job_id == run.job_id:
                # Jobs that a scheduler starts complete one checkpoint in each run.
                self._last_completed_ms = run.restored.metadata.created_ms
            self._export(lambda: initialization_span(run))

        self.reporter.submit("start of a run", work)

    def report_completed(self, batch: CompletedBatch) -> None:
        """Report a completed checkpoint."""
        self.reporter.submit("completed checkpoint", lambda: self._complete(batch))

    def _complete(self, batch: CompletedBatch) -> None:
        metadata = batch.completed.metadata
        samples = list(checkpoint_samples(batch))
        if self._last_completed_ms:
            interval_s = (metadata.created_ms - self._last_completed_ms) / 1000
            samples.append(Sample(d.INTERVAL, (metadata.job_id,), interval_s))
        self._last_completed_ms = metadata.created_ms
        used = self.reporter.take_store_calls()
        samples += call_samples(metadata.job_id, "driver", used.calls, used.retries)
        if self.settings.has_subtasks:
            samples += subtask_samples(batch.completed)
        self.reporter.record(samples)
        self._export(lambda: checkpoint_span(batch))
        now_s = self.clock.monotonic_s()
        if now_s >= self._states_due_s:  # last, because these ask the store and Spark
            self._states_due_s = now_s + self.settings.interval_s
            self.reporter.record(state_samples(batch.completed))
            self.reporter.record(lag_samples(metadata.job_id, self.last_progress()))

    def report_failed(self, failed: FailedCheckpoint) -> None:
        """Report a checkpoint that failed."""

        def work() -> None:
            self.reporter.record([Sample(d.CHECKPOINTS_FAILED, (failed.job_id, failed.reason), 1)])
            self._export(lambda: failure_span(failed))

        self.reporter.submit("failed checkpoint", work)

    def report_sweep(self, job_id: str, report: SweepReport) -> None:
        """Report a sweep of the job's directory."""
        samples = [
            Sample(d.SWEPT_FILES, (job_id,), len(report.files)),
            Sample(d.SWEPT_BYTES, (job_id,), report.total_bytes),
            Sample(d.ORPHANED_FILES, (job_id,), report.within_grace),
        ]
        self.reporter.submit("sweep", lambda: self.reporter.record(samples))

    def _export(self, make: Callable[[], SpanTree]) -> None:
        if self.spans is not None:
            self.spans.export(make())
