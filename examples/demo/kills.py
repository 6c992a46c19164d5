"""The points where the demo kills the job, and the way to hit them from outside."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from examples.demo.job_process import JobProcess
from examples.demo.places import FLEET, FLIGHTS, Job
from examples.demo.progress import Progress, Stage

_LOOK_EVERY_S, _LOOK_CLOSELY_EVERY_S = 0.02, 0.001


@dataclass(frozen=True, slots=True)
class KillPoint:
    """A wish: kill the job in a batch that has come so far.

    Attributes:
        stage: How far.
        first_batch: The first batch in which it may happen.
        patience: Number of batches in which it is tried.
    """

    stage: Stage
    first_batch: int
    patience: int

    def is_due(self, batch: int) -> bool:
        """Return whether to try it in this batch."""
        return self.first_batch <= batch < self.first_batch + self.patience


KILL_POINTS: Mapping[Job, tuple[KillPoint, ...]] = {
    FLIGHTS: (
        KillPoint(Stage.STATE_WRITTEN, first_batch=3, patience=6),
        KillPoint(Stage.SINK_DONE, first_batch=9, patience=6),
        KillPoint(Stage.PUBLISHED, first_batch=15, patience=6),
    ),
    FLEET: (
        KillPoint(Stage.STATE_WRITTEN, first_batch=2, patience=2),
        KillPoint(Stage.SINK_DONE, first_batch=4, patience=4),
        KillPoint(Stage.PUBLISHED, first_batch=8, patience=4),
    ),
}


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill of the job's processes.

    Attributes:
        batch: The batch that was running.
        stage: Progress of the batch, by the files that existed when all processes were dead.
    """

    batch: int
    stage: Stage

    @property
    def checkpoint(self) -> int:
        """The checkpoint that the job must resume from: the last one that existed."""
        return self.batch + 1 if self.stage.completed else self.batch

    @property
    def skipped(self) -> tuple[int, ...]:
        """The batches that Spark has to repeat, and that must be skipped then."""
        return (self.batch,) if self.stage is Stage.PUBLISHED else ()


def watch(
    job: JobProcess,
    progress: Progress,
    points: tuple[KillPoint, ...],
    on_batch: Callable[[int], None],
) -> Kill | None:
    """Follow a run until it ends, or until it is at one of the points and killed there.

    As in a power failure, the job does not cooperate, so only its files show
    where it is. Some stages last a few milliseconds: hence the tight loop in batches of such a point, and a separate
    look at the job while it is held.

    Args:
        job: The run.
        progress: Progress read from its files.
        points: The kill points that are left.
        on_batch: Called with the number of finished batches each time it grows.

    Returns:
        The kill, or None if the run has ended by itself.
    """
    batch = progress.next_batch()
    while job.exit_code is None:
        if progress.is_committed(batch):
            batch += 1
            on_batch(batch)
            job.look_around()
            continue
        wanted = {point.stage for point in points if point.is_due(batch)}
        if wanted and progress.stage(batch) in wanted:
            job.stop()
            if progress.stage(batch) in wanted:
                job.kill()
                return Kill(batch, progress.last_stage(batch))
            job.resume()
        time.sleep(_LOOK_CLOSELY_EVERY_S if wanted else _LOOK_EVERY_S)
    while progress.is_committed(batch):
        batch += 1
        on_batch(batch)
    return None
