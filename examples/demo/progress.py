"""The progress of a micro-batch, which is visible in the job's files."""

import time
from dataclasses import dataclass
from enum import Enum

from examples.demo.places import Places
from holdfast.locations.adapters import METADATA_FILE, file_system_for

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
