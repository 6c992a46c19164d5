"""One run of a query with state, from its start until it stops or fails."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self

import pyspark
from pyspark.sql import DataFrame

from holdfast.backends.functions import BatchTimes
from holdfast.common import Clock
from holdfast.errors import CheckpointNotFoundError, OutcomeUnknownError
from holdfast.locations.coordination import sweep
from holdfast.redaction import redact
from holdfast.spark.checkpoint_location import (
    APPLICATION_FILE,
    LINK_FILE,
    Link,
    check_apart,
    decode_application,
    encode_link,
)
from holdfast.spark.engines import (
    Engine,
    RunningQuery,
    error_of_task,
    guard_against_other_plans,
)
from holdfast.spark.event_time import (
    NO_TIMERS,
    IdleTicks,
    NextTimers,
    earliest_timers,
    is_due,
    is_tick_only,
    next_batch_time,
    times_of_batch,
)
from holdfast.spark.operators import (
    CheckpointedSink,
    Operator,
    Sink,
    checkpointed_sinks,
    initialize_sinks,
    snapshot_sinks,
)
from holdfast.spark.query.batch_run import BatchRun
from holdfast.spark.query.cleaning import CLEANER
from holdfast.spark.query.coordinator import CheckpointCoordinator
from holdfast.spark.query.frames import compute
from holdfast.spark.query.pending_checkpoint import PendingCheckpoint
from holdfast.spark.query.running_operator import RunningOperator
from holdfast.spark.settings import Settings
from holdfast.spark.subtask import Acknowledgement, JobStorage
from holdfast.spark_progress import SparkProgress, sources_of

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class QueryRun:
    """Runs a query's micro-batches one by one, and makes a checkpoint of each.

    Attributes:
        run_id: Spark's id of the run.
        process: The user's function, which applies the operators to a batch.
        operators: The query's operators by uid.
        sinks: The query's sinks with a state of their own, by the name under which it is kept.
        job: Where the job's state is kept.
        coordinator: Drives the checkpoints.
        link: The link from Spark's checkpoint directory to them.
        idle_ticks: Asks Spark for batches when timers are due; None if they wait for the next rows.
        has_begun: Whether there was a batch.
        next_timers: The earliest timers that the last batch has left; None if nobody knows.
        application_id: The id that sinks know the query by; None until a sink asks for it.
    """

    run_id: str
    process: Sink
    operators: Mapping[str, RunningOperator]
    sinks: Mapping[str, CheckpointedSink]
    job: JobStorage
    coordinator: CheckpointCoordinator
    link: Link
    idle_ticks: IdleTicks | None
    has_begun: bool = False
    next_timers: NextTimers | None = None
    application_id: str | None = None

    @classmethod
    def start(
        cls,
        process: Sink,
        operators: Mapping[str, Operator],
        engine: Engine,
        query: RunningQuery,
        *,
        idle_ticks: IdleTicks | None,
        clock: Clock,
    ) -> Self:
        """Read the settings; storage is not touched yet, but for the job's directories.

        Raises:
            InvalidRequestError: A setting can't be used.
        """
        settings = Settings.parse(engine.session.conf.getAll)
        engine.check(settings)
        job_id = settings.job_id or query.query_id
        check_apart(query.checkpoint_location, settings.checkpoint_dir, job_id)
        _warn_of_unknown(settings, operators)
        settings.stores.use()
        storage = settings.open_storage()
        sinks = checkpointed_sinks(process, operators)
        coordinator = CheckpointCoordinator(
            storage.create_checkpoint_storage(job_id),
            job_id=job_id,
            query_id=query.query_id,
            operators=operators,
            sinks=sinks,
            num_retained=settings.num_retained,
            allow_non_restored_state=settings.allow_non_restored_state,
            start=settings.savepoint_path,
            directory=settings.job_directory(job_id),
            claims_start=settings.claim_mode == "claim",
            sweep=_sweep_of(settings, job_id),
            cleaner=CLEANER,
            clock=clock,
        )
        guard_against_other_plans(engine.session)
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
                warm=settings.warm,
                clock=clock,
            ),
            coordinator=coordinator,
            link=Link(
                checkpoint_dir=settings.checkpoint_dir,
                job_id=job_id,
                storage=settings.checkpoint_storage,
            ),
            idle_ticks=idle_ticks,
        )

    def take(self, rows: DataFrame, batch_id: int, engine: Engine, query: RunningQuery) -> None:
        """Run one micro-batch through the operators and the sink, and commit it."""
        offsets_of = partial(engine.offsets, query)
        pending = self.coordinator.begin(batch_id, offsets_of)
        if pending is None:
            self._begin(engine, query)
            if engine.needs_rows(query):
                compute(rows)  # what Spark itself keeps of the batch is still to be committed
            if self.idle_ticks is not None:
                self.idle_ticks.ask(0)  # only the next batch knows the pending timers
            return
        try:
            self._begin(engine, query)
            # Not behind the sink's jobs, of which Spark has much to note then.
            offsets = _logged(offsets_of(batch_id), batch_id, query)
            times = times_of_batch(offsets, pending.progress)
            rows_came = self._rows_came(offsets, pending)
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
            if not rows_came and self._has_nothing_to_do(pending, times) and engine.is_empty(rows):
                self.coordinator.carry_over(pending, progress)
            else:
                find_id = partial(self._find_application_id, engine, query)
                acknowledgements = self._run(engine, rows, pending, times, find_id)
                states = snapshot_sinks(self.sinks, pending.checkpoint_id)
                self.coordinator.complete(pending, acknowledgements, progress, states)
                self.next_timers = earliest_timers(
                    report.next_timers
                    for reports in acknowledgements.values()
                    for report in reports
                )
        except OutcomeUnknownError:
            raise  # it may exist: nothing is deleted
        except BaseException as error:
            if self.coordinator.abort(pending, error_of_task(error) or error):
                self._notify("notify_checkpoint_aborted", pending.checkpoint_id)
            raise
        self._notify("notify_checkpoint_complete", pending.checkpoint_id)
        if self.idle_ticks is not None:
            self.idle_ticks.ask(
                next_batch_time(*(self.next_timers or NO_TIMERS), times, has_input=rows_came)
            )

    def _rows_came(self, offsets: str, pending: PendingCheckpoint) -> bool:
        """Whether Spark may have planned the batch for rows, and not only because it was asked for."""
        if self.idle_ticks is None:
            return True
        sources = sources_of(offsets)
        self.idle_ticks.check_sources(sources)
        before = pending.progress
        # The sources of a savepoint, with which the query began, are others.
        is_next = before is not None and before.batch_id == pending.batch_id - 1
        return not is_tick_only(sources, sources_of(before.offsets) if before and is_next else None)

    def _has_nothing_to_do(self, pending: PendingCheckpoint, times: BatchTimes) -> bool:
        """Whether a batch without rows would leave state and output as they are.

        Only rules and sinks with a state of their own know what they do with such a batch.
        """
        return (
            self.next_timers is not None
            and not is_due(*self.next_timers, times)
            and not self.sinks
            and not any(running.operator.takes_broadcast for running in self.operators.values())
            and self.coordinator.can_carry_over(pending)
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

    def _run(
        self,
        engine: Engine,
        rows: DataFrame,
        pending: PendingCheckpoint,
        times: BatchTimes,
        application_id: Callable[[], str],
    ) -> dict[str, list[Acknowledgement]]:
        """Let the user's function run its jobs; the acknowledgements come back through them."""
        with BatchRun(
            engine=engine,
            run_id=self.run_id,
            pending=pending,
            operators=self.operators,
            job=self.job,
            times=times,
            application_id=application_id,
        ) as batch:
            self.process(rows, pending.batch_id)
            return batch.finish()

    def _begin(self, engine: Engine, query: RunningQuery) -> None:
        """With the first batch: leave word of where the checkpoints are, and give sinks their state.

        Listeners are told of the checkpoint that the run goes on from: a crash can have prevented that.
        """
        if self.has_begun:
            return
        engine.leave(query, LINK_FILE, encode_link(self.link))
        latest = self.coordinator.latest
        initialize_sinks(self.sinks, latest.metadata.coordinator_states if latest else {})
        self.has_begun = True
        if latest:
            self._notify("notify_checkpoint_complete", latest.checkpoint_id)

    def _notify(self, method: str, checkpoint_id: int) -> None:
        """Tell listeners, the driver's copies of them, about a checkpoint; their errors change nothing."""
        candidates: list[object] = [self.process]
        for running in self.operators.values():
            candidates += [running.operator.function, running.operator.sink]
        listeners = {id(candidate): candidate for candidate in candidates}.values()  # each once
        for listener in listeners:
            told = getattr(listener, method, None)
            if told is None:
                continue
            try:
                told(checkpoint_id)
            except Exception:  # noqa: BLE001  # user code: anything
                _log.exception("%s failed in %s", type(listener).__name__, method)


def _logged(offsets: str | None, batch_id: int, query: RunningQuery) -> str:
    """Spark's offset log entry of a batch that runs."""
    if offsets is None:
        message = (
            f"Spark's offset log has no entry of batch {batch_id}, which runs: something deletes files of "
            "its checkpointLocation"
        )
        raise CheckpointNotFoundError(message, query.checkpoint_location)
    return offsets


def _warn_of_unknown(settings: Settings, operators: Mapping[str, Operator]) -> None:
    """Say it if a backend is set for an operator that there is not.

    It is no error: queries of a session have the same settings, and operators may come back later.
    """
    unknown = [uid for uid, _ in settings.state_backend.by_operator if uid not in operators]
    if unknown:
        _log.warning(
            "spark.holdfast.state.backend is set for %s: this query has no such operator; it has %s. "
            "Correct or remove it, unless another query of the session has the operator",
            _listed(unknown),
            _listed(operators),
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names)))


def _sweep_of(settings: Settings, job_id: str) -> Callable[[], object] | None:
    """A call that deletes the leftovers of a job's crashes; None if the job has no directory."""
    if settings.checkpoint_dir is None:
        return None
    return partial(sweep, settings.checkpoint_dir, job_id, grace_s=settings.orphan_grace_s)
