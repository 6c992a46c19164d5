"""The points where the demo kills the job, and the way to hit them from outside.

The progress of a micro-batch is visible in the job's files.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from examples.demo.job_process import JobProcess
from examples.demo.places import FLEET, FLIGHTS, Job, Places
from holdfast.locations.adapters import METADATA_FILE, file_system_for

_LOOK_EVERY_S, _LOOK_CLOSELY_EVERY_S = 0.02, 0.001
_STORE_DELAY_S = 0.5


class Stage(Enum):
    """The progress of a batch: its state, its sink and its checkpoint."""

    WAITING = "no state written"
    STATE_WRITTEN = "state written, sink busy"
    SINK_DONE = "sink done, not published"
    PUBLISHED = "published, no Spark commit"
    COMMITTED = "after the batch"

    @property
    def in_batch(self) -> bool:
        """True if a kill here hits a batch in its middle."""
        return self not in {Stage.WAITING, Stage.COMMITTED}

    @property
    def completed(self) -> bool:
        """True if the batch is done: its checkpoint exists."""
        return self in {Stage.PUBLISHED, Stage.COMMITTED}


@dataclass(frozen=True, slots=True)
class Progress:
    """The stages of a job's batches.

    A stage is right for a batch that runs for the first time: files of a killed attempt can't be
    distinguished from those of the next one.
    """

    places: Places

    def stage(self, batch: int) -> Stage:
        """Return the progress of the batch; if the job runs, it may already be further."""
        directory = f"{self.places.checkpoints}/{self.places.job.name}/chk-{batch + 1}"
        names = {
            entry.uri.rpartition("/")[2] for entry in file_system_for(directory).list(directory)
        }
        if self.is_committed(batch):
            return Stage.COMMITTED
        if METADATA_FILE in names:
            return Stage.PUBLISHED
        if (self.places.outputs[-1] / f"batch={batch}" / "_SUCCESS").exists():
            return Stage.SINK_DONE
        has_state = any(not name.startswith(".") for name in names)
        return Stage.STATE_WRITTEN if has_state else Stage.WAITING

    def last_stage(self, batch: int) -> Stage:
        """Return the progress of the batch after the end of the job."""
        if self.places.store is not None:
            time.sleep(_STORE_DELAY_S)  # it may still be busy with the last request
        return self.stage(batch)

    def is_committed(self, batch: int) -> bool:
        """Return whether Spark's commit log has the batch."""
        return (self.places.spark_checkpoints / "commits" / str(batch)).exists()

    def next_batch(self) -> int:
        """The first batch that Spark has not noted as done."""
        commits = self.places.spark_checkpoints / "commits"
        done = [int(path.name) for path in commits.glob("*") if path.name.isdecimal()]
        return max(done, default=-1) + 1


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
