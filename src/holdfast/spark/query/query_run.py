"""One run of a query with state, from its start until it stops or fails."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Self

import pyspark
from pyspark.sql import DataFrame

from holdfast.backends.functions import BatchTimes
from holdfast.common import Clock
from holdfast.errors import CheckpointError, CheckpointNotFoundError, OutcomeUnknownError
from holdfast.locations.coordination import sweep
from holdfast.redaction import redact
from holdfast.spark import event_time
from holdfast.spark.checkpoint_location import (
    APPLICATION_FILE,
    LINK_FILE,
    Link,
    check_disjoint,
    decode_application,
    encode_link,
)
from holdfast.spark.compat import settings_of
from holdfast.spark.engines import Engine, RunningQuery, error_of_task, pin_planner_settings
from holdfast.spark.event_time import IdleTicks, NextTimers
from holdfast.spark.metrics import CompletedBatch, FailedCheckpoint, Initialization, JobMetrics
from holdfast.spark.operators import (
    CheckpointedSink,
    Operator,
    Sink,
    TaskHomes,
    checkpointed_sinks,
    snapshot_sinks,
)
from holdfast.spark.query.batch_run import BatchRun, compute
from holdfast.spark.query.checkpoints import CLEANER, PendingCheckpoint, failure_reason
from holdfast.spark.query.continuation import Continuation, StoredJob
from holdfast.spark.query.coordinator import CheckpointCoordinator, Retention
from holdfast.spark.query.running_operator import RunningOperator
from holdfast.spark.settings import PREFIX, Settings
from holdfast.spark.subtask import Acknowledgement, JobStorage
from holdfast.spark_progress import SparkProgress, sources_of

_log = logging.getLogger(__name__)

_MAX_SMALL_ROWS = 100_000
"""Rows of a batch that Spark moves about as fast as it starts one more stage."""

_DYNAMIC_ALLOCATION = "spark.dynamicAllocation.enabled"
_REDUCE_LOCALITY = "spark.shuffle.reduceLocality.enabled"


@dataclass(slots=True, kw_only=True)
class QueryRun:
    """Runs a query's micro-batches one by one, and makes a checkpoint of each.

    Attributes:
        process: The user's function, which applies the operators to a batch; None if there is one operator, which
            is applied to the batch and writes to its sink.
        operators: The query's operators by uid.
        sinks: The query's sinks with state, by the name of that state.
        idle_ticks: Requests batches when timers are due; None if timers wait for the next rows.
        has_started: Whether there was a batch.
        next_timers: The earliest timers after the last batch; None if they are unknown.
        application_id: The application id of the query for sinks; None until a sink asks for it.
        tick_source: The index of the source of idle ticks; None until a batch needs it.
        metrics: Receives reports of checkpoints; None without metrics.
        adds_executors: Whether Spark adds executors if more tasks wait than the present ones run at once.
        homes: The preferred executors of tasks; None if Spark may run them anywhere.
    """

    run_id: str
    process: Sink | None
    operators: Mapping[str, RunningOperator]
    sinks: Mapping[str, CheckpointedSink]
    job: JobStorage
    coordinator: CheckpointCoordinator
    link: Link
    idle_ticks: IdleTicks | None
    has_started: bool = False
    next_timers: NextTimers | None = None
    application_id: str | None = None
    tick_source: int | None = None
    metrics: JobMetrics | None = None
    adds_executors: bool = False
    homes: TaskHomes | None = None

    @classmethod
    def start(
        cls,
        process: Sink | None,
        operators: Mapping[str, Operator],
        sinks: Mapping[str, CheckpointedSink],
        engine: Engine,
        query: RunningQuery,
        *,
        idle_ticks: IdleTicks | None,
        clock: Clock,
    ) -> Self:
        """Parse the settings; nothing in storage is read or changed yet, except that directories are created."""
        all_settings = settings_of(engine.session)
        settings = Settings.parse(all_settings)
        engine.check(settings)
        job_id = settings.job_id or query.query_id
        check_disjoint(query.checkpoint_location, settings.checkpoint_dir, job_id)
        _warn_of_unknown_uids(settings, operators)
        if settings.task_locality and all_settings.get(_REDUCE_LOCALITY, "").lower() != "false":
            message = (
                "%sstate.task-locality has no effect: set %s=false before the Spark session starts"
            )
            _log.warning(message, PREFIX, _REDUCE_LOCALITY)
        settings.stores.use()
        storage = settings.open_storage()
        sinks = checkpointed_sinks(process, operators, sinks)
        metrics = JobMetrics.open(
            settings.metrics, job_id, clock, partial(engine.last_progress, query)
        )
        coordinator = CheckpointCoordinator(
            StoredJob(
                job_id=job_id,
                access=storage.create_checkpoint_storage(job_id),
                directory=settings.job_directory(job_id),
                savepoint=settings.savepoint_path,
                claims_savepoint=settings.claim_mode == "claim",
            ),
            Continuation(
                query_id=query.query_id,
                operators=operators,
                sinks=sinks,
                allow_non_restored_state=settings.allow_non_restored_state,
                default_parallelism=cache(engine.default_parallelism),
            ),
            Retention(
                num_retained=settings.num_retained,
                cleaner=CLEANER,
                sweep=None
                if settings.checkpoint_dir is None
                else partial(_sweep, settings.checkpoint_dir, job_id, settings, metrics),
                sweep_interval_s=settings.orphan_grace_s,  # what one spares, the next one deletes
            ),
            clock=clock,
            log_format=settings.metrics.log_format,
        )
        pin_planner_settings(engine.session)
        return cls(
            run_id=query.run_id,
            process=process,
            operators={
                uid: RunningOperator(operator=operator, reports=engine.reports())
                for uid, operator in operators.items()
            },
            sinks=sinks,
            job=JobStorage(
                job_id=job_id,
                storage=storage,
                stores=settings.stores,
                compression=settings.compression,
                state=settings.state,
                clock=clock,
            ),
            coordinator=coordinator,
            link=Link(
                checkpoint_dir=settings.checkpoint_dir,
                job_id=job_id,
                storage=settings.checkpoint_storage,
            ),
            idle_ticks=idle_ticks,
            metrics=metrics,
            adds_executors=all_settings.get(_DYNAMIC_ALLOCATION, "").lower() == "true",
            homes=TaskHomes(query.query_id) if settings.task_locality else None,
        )

    def run_batch(
        self, rows: DataFrame, batch_id: int, engine: Engine, query: RunningQuery
    ) -> None:
        """Run one micro-batch through the operators and the sink, and commit it."""
        offsets_of = partial(engine.offsets, query)
        pending = self.coordinator.begin(batch_id, offsets_of)
        if pending is not None and self.metrics is not None and not self.has_started:
            self.metrics.report_start(self._initialization(pending))
        if pending is None:
            self._start(engine, query)
            if engine.needs_rows(query):
                compute(rows)  # Spark still has to commit its own state of the batch
            # The remaining timers are unknown before the next batch.
            self._request_batch(0, batch_id, engine, query)
            return
        acknowledgements: dict[str, list[Acknowledgement]] = {}
        try:
            self._start(engine, query)
            # Before the sink's jobs: Spark's listeners are busy with them later.
            offsets = _require_offsets(offsets_of(batch_id), batch_id, query)
            times = event_time.times_of_batch(offsets, pending.progress)
            has_input = self._has_input(offsets, pending, query)
            progress = SparkProgress(
                query_id=query.query_id,
                run_id=query.run_id,
                batch_id=batch_id,
                offsets=offsets,
                checkpoint_location=redact(query.checkpoint_location),
                spark_version=pyspark.__version__,
                watermark=max(times.watermark, 0),  # as Spark logs it
                batch_time=times.batch_time,
                query_name=query.name,
            )
            if not has_input and self._is_noop_batch(pending, times) and engine.is_empty(rows):
                completed = self.coordinator.reuse_state(pending, progress)
            else:
                find_id = partial(self._find_application_id, engine, query)
                last_rows = engine.last_input_rows(query)
                is_small = last_rows is not None and last_rows <= _MAX_SMALL_ROWS
                acknowledgements = self._process(
                    engine, rows, pending, times, find_id, is_small=is_small
                )
                states = snapshot_sinks(self.sinks, pending.checkpoint_id)
                completed = self.coordinator.complete(pending, acknowledgements, progress, states)
                self.next_timers = event_time.earliest_timers(
                    report.next_timers
                    for reports in acknowledgements.values()
                    for report in reports
                )
        except OutcomeUnknownError as error:
            self._report_failure(pending, error)
            raise  # the checkpoint may exist: nothing is deleted
        except BaseException as error:
            cause = error_of_task(error) or error
            if self.coordinator.abort(pending, cause):
                self._notify("notify_checkpoint_aborted", pending.checkpoint_id)
            self._report_failure(pending, cause)
            raise
        if self.metrics is not None:
            batch = CompletedBatch(completed, pending.assigned, acknowledgements)
            self.metrics.report_completed(batch)
        self._notify("notify_checkpoint_complete", pending.checkpoint_id)
        timers = self.next_timers or event_time.NO_TIMERS
        at_ms = event_time.next_batch_time(*timers, times, has_input=has_input)
        self._request_batch(at_ms, batch_id, engine, query)

    def _initialization(self, pending: PendingCheckpoint) -> Initialization:
        return Initialization(
            job_id=self.job.job_id,
            start_ms=self.job.clock.now_ms() - 1000 * (pending.assigned_s - pending.start_s),
            read_ms=1000 * (pending.claimed_s - pending.start_s),
            assign_ms=1000 * (pending.assigned_s - pending.claimed_s),
            restored=pending.restored,
        )

    def _report_failure(self, pending: PendingCheckpoint, error: BaseException) -> None:
        if self.metrics is None:
            return
        kind = error.kind if isinstance(error, CheckpointError) else ""
        self.metrics.report_failed(
            FailedCheckpoint(
                job_id=self.job.job_id,
                checkpoint_id=pending.checkpoint_id,
                failed_ms=self.job.clock.now_ms(),
                duration_ms=1000 * (self.job.clock.monotonic_s() - pending.start_s),
                reason=kind or "other",
                message=failure_reason(error),
            )
        )

    def _request_batch(
        self, at_ms: int | None, batch_id: int, engine: Engine, query: RunningQuery
    ) -> None:
        """Request the batch after this one, if the query has idle ticks; for the time see `IdleTicks.ask`."""
        if self.idle_ticks is None:
            return
        self.idle_ticks.ask(at_ms)
        if at_ms is not None and query.execution is not None:
            if self.tick_source is None:  # in a repeated batch
                offsets = _require_offsets(engine.offsets(query, batch_id), batch_id, query)
                self.tick_source = self.idle_ticks.find_source(sources_of(offsets), query.execution)
            event_time.include_requests(query.execution, self.tick_source)

    def _has_input(self, offsets: str, pending: PendingCheckpoint, query: RunningQuery) -> bool:
        """Return whether Spark may have planned the batch for rows, and not only for an idle tick."""
        if self.idle_ticks is None:
            return True
        sources = sources_of(offsets)
        if self.tick_source is None:
            self.tick_source = self.idle_ticks.find_source(sources, query.execution)
        before = pending.progress
        # A savepoint that the query starts from has other sources.
        is_next = before is not None and before.batch_id == pending.batch_id - 1
        return not event_time.is_tick_only(
            sources, sources_of(before.offsets) if before and is_next else None, self.tick_source
        )

    def _is_noop_batch(self, pending: PendingCheckpoint, times: BatchTimes) -> bool:
        """Return whether a batch without rows would not change state and output.

        Broadcast functions and sinks with state may react to such a batch.
        """
        return (
            self.next_timers is not None
            and not event_time.is_due(*self.next_timers, times)
            and not self.sinks
            and not any(running.operator.takes_broadcast for running in self.operators.values())
            and self.coordinator.can_reuse_state(pending)
        )

    def _find_application_id(self, engine: Engine, query: RunningQuery) -> str:
        """Read the application id once in a run: only a stopped query can be rolled back."""
        if self.application_id is None:
            content = engine.read(query, APPLICATION_FILE)
            uri = f"{query.checkpoint_location}/{APPLICATION_FILE}"
            self.application_id = (
                query.query_id if content is None else decode_application(content, uri=uri)
            )
        return self.application_id

    def _process(
        self,
        engine: Engine,
        rows: DataFrame,
        pending: PendingCheckpoint,
        times: BatchTimes,
        application_id: Callable[[], str],
        *,
        is_small: bool,
    ) -> dict[str, list[Acknowledgement]]:
        """Apply the operators and let the sink run its jobs, which return the acknowledgements."""
        directory = self.coordinator.job.directory
        if self.homes is not None:
            self.homes.update(engine.executors())
        with BatchRun(
            engine=engine,
            run_id=self.run_id,
            pending=pending,
            operators=self.operators,
            job=self.job,
            times=times,
            application_id=application_id,
            job_directory=directory.uri if directory else None,
            is_small=is_small,
            shares_tasks=not self.adds_executors,
            homes=self.homes,
        ) as batch:
            if self.process is not None:
                self.process(rows, pending.batch_id)
            else:
                (running,) = self.operators.values()
                output = batch.apply(running.operator, rows, None)
                if running.operator.sink is not None:
                    running.operator.sink(output, pending.batch_id)
            return batch.finish()

    def _start(self, engine: Engine, query: RunningQuery) -> None:
        """In the first batch: write the link to the checkpoints, and initialize sinks.

        Listeners are notified of the checkpoint that the run resumes from: a crash may have prevented that.
        """
        if self.has_started:
            return
        engine.write(query, LINK_FILE, encode_link(self.link))
        self._restore_sinks()
        self.has_started = True

    def prepare_repetition(self, engine: Engine) -> None:
        """Prepare to run a batch again whose checkpoint was declined: nothing that the attempt has left counts.

        The job is not claimed again, so a driver that was replaced in the meantime doesn't take it back.
        """
        self.operators = {
            uid: replace(running, reports=engine.reports())
            for uid, running in self.operators.items()
        }
        self._restore_sinks()

    def _restore_sinks(self) -> None:
        latest = self.coordinator.latest
        states = latest.metadata.coordinator_states if latest else {}
        for name, sink in self.sinks.items():
            sink.initialize_state(states.get(name))
        if latest:
            self._notify("notify_checkpoint_complete", latest.checkpoint_id)

    def _notify(self, method: str, checkpoint_id: int) -> None:
        """Notify listeners, the driver's copies of them, of a checkpoint; their errors are logged."""
        candidates: list[object] = [self.process]
        for running in self.operators.values():
            candidates += [running.operator.function, running.operator.sink]
        candidates += self.sinks.values()
        listeners = {id(candidate): candidate for candidate in candidates}.values()  # each once
        for listener in listeners:
            notify = getattr(listener, method, None)
            if notify is None:
                continue
            try:
                notify(checkpoint_id)
            except Exception:  # noqa: BLE001  # user code: anything
                _log.exception("%s failed in %s", type(listener).__name__, method)


def _sweep(directory: str, job_id: str, settings: Settings, metrics: JobMetrics | None) -> None:
    """Delete the job's orphaned files, and report them."""
    report = sweep(directory, job_id, grace_s=settings.orphan_grace_s)
    if metrics is not None:
        metrics.report_sweep(job_id, report)


def _require_offsets(offsets: str | None, batch_id: int, query: RunningQuery) -> str:
    """Return Spark's offset log entry of a running batch."""
    if offsets is None:
        message = (
            f"Spark's offset log has no entry of batch {batch_id}, which is running: another process "
            "deletes files of its checkpointLocation"
        )
        raise CheckpointNotFoundError(message, query.checkpoint_location)
    return offsets


def _warn_of_unknown_uids(settings: Settings, operators: Mapping[str, Operator]) -> None:
    """Log a warning if a backend is set for an operator that does not exist.

    It is not an error: queries of a session have the same settings, and operators may be added again later.
    """
    unknown = {uid for uid, _ in settings.state_backend.by_operator} - operators.keys()
    if unknown:
        _log.warning(
            "spark.holdfast.state.backend is set for %s: this query has no such operator; it has %s. "
            "Correct or remove it, unless another query of the session has the operator",
            *(", ".join(map(repr, sorted(uids))) for uids in (unknown, operators)),
        )
