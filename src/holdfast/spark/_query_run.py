"""One run of a query with state, from its start until it stops or fails."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self

import pyspark
from pyspark.sql import DataFrame

from holdfast.errors import OutcomeUnknownError
from holdfast.locations import sweep
from holdfast.spark._acknowledgements import Acknowledgement
from holdfast.spark._batch import Batch, RunningOperator, run
from holdfast.spark._coordinator import CheckpointCoordinator, PendingCheckpoint, SparkProgress
from holdfast.spark._engine import Engine, RunningQuery, guard_against_other_orders
from holdfast.spark._operator import Operator, Sink
from holdfast.spark._settings import Settings
from holdfast.spark._subtask import JobStorage

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class QueryRun:
    """Takes a query's micro-batches one by one, and makes a checkpoint of each.

    Attributes:
        run_id: Spark's id of the run.
        process: The user's function, which applies the operators to a batch.
        operators: By uid.
        job: Where the job's state is kept.
        coordinator: Drives the checkpoints.
        has_begun: Whether there was a batch.
    """

    run_id: str
    process: Sink
    operators: Mapping[str, RunningOperator]
    job: JobStorage
    coordinator: CheckpointCoordinator
    has_begun: bool = False

    @classmethod
    def start(
        cls,
        process: Sink,
        operators: Mapping[str, Operator],
        engine: Engine,
        query: RunningQuery,
    ) -> Self:
        """Read the settings; storage is not touched yet, but for the job's directories.

        Raises:
            InvalidRequestError: A setting can't be used.
        """
        settings = Settings.parse(engine.session.conf.getAll)
        engine.check(settings)
        settings.stores.use()
        storage = settings.open_storage()
        job_id = settings.job_id or query.query_id
        coordinator = CheckpointCoordinator(
            storage.create_checkpoint_storage(job_id),
            job_id=job_id,
            query_id=query.query_id,
            operators=operators,
            num_retained=settings.num_retained,
            allow_non_restored_state=settings.allow_non_restored_state,
            sweep=_sweep_of(settings, job_id),
        )
        guard_against_other_orders(engine.session)
        return cls(
            run_id=query.run_id,
            process=process,
            operators={
                uid: RunningOperator(operator=one, finished=engine.counter())
                for uid, one in operators.items()
            },
            job=JobStorage(
                job_id=job_id,
                storage=storage,
                stores=settings.stores,
                compression=settings.compression,
            ),
            coordinator=coordinator,
        )

    def take(self, rows: DataFrame, batch_id: int, engine: Engine, query: RunningQuery) -> None:
        """Run one micro-batch through the operators and the sink, and commit it."""
        pending = self.coordinator.begin(batch_id)
        self._tell_of_restored()
        if pending is None:
            if engine.has_own_state(query):
                run(rows)  # the state of Spark's own operators is still to be committed
            return
        try:
            acknowledgements = self._run(engine, rows, pending)
            progress = SparkProgress(
                query_id=query.query_id,
                run_id=query.run_id,
                batch_id=batch_id,
                offsets=query.offsets,
                checkpoint_location=query.checkpoint_location,
                spark_version=pyspark.__version__,
            )
            self.coordinator.complete(pending, acknowledgements, progress)
        except OutcomeUnknownError:
            raise  # it may exist: nothing is deleted
        except BaseException:
            if self.coordinator.abort(pending):
                self._notify("notify_checkpoint_aborted", pending.checkpoint_id)
            raise
        self._notify("notify_checkpoint_complete", pending.checkpoint_id)

    def _run(
        self, engine: Engine, rows: DataFrame, pending: PendingCheckpoint
    ) -> dict[str, list[Acknowledgement]]:
        """Let the user's function run its jobs; the acknowledgements come back through them."""
        with Batch(
            engine=engine,
            run_id=self.run_id,
            pending=pending,
            operators=self.operators,
            job=self.job,
        ) as batch:
            self.process(rows, pending.batch_id)
            return batch.finish()

    def _tell_of_restored(self) -> None:
        """Say once more what the run goes on from: a crash can have kept it from being told."""
        if not self.has_begun:
            self.has_begun = True
            restored = self.coordinator.latest_checkpoint_id
            if restored is not None:
                self._notify("notify_checkpoint_complete", restored)

    def _notify(self, method: str, checkpoint_id: int) -> None:
        """Tell the driver's copies of what wants to know; their errors change nothing."""
        operators = [one.operator for one in self.operators.values()]
        listeners = [
            self.process,
            *(listener for one in operators for listener in (one.function, one.sink)),
        ]
        for listener in listeners:
            told = getattr(listener, method, None)
            if told is None:
                continue
            try:
                told(checkpoint_id)
            except Exception:  # noqa: BLE001  # user code: anything
                _log.exception("%s failed in %s", type(listener).__name__, method)


def _sweep_of(settings: Settings, job_id: str) -> Callable[[], object] | None:
    """What deletes the leftovers of a job's crashes, if it has a directory."""
    if settings.checkpoint_dir is None:
        return None
    return partial(sweep, settings.checkpoint_dir, job_id, grace_s=settings.orphan_grace_s)
