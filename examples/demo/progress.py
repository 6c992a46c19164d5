"""How far a micro-batch has come, as anybody can see who looks at the job's files."""

import time
from dataclasses import dataclass
from enum import Enum

from examples.demo.places import Places
from holdfast.locations.adapters import METADATA_FILE, file_system_for

_STORE_SETTLES_S = 0.5


class Stage(Enum):
    """How far a batch has come: what is true of its state, its sink and its checkpoint."""

    WAITING = "no state written"
    STATE_WRITTEN = "state written, sink busy"
    SINK_DONE = "sink done, not published"
    PUBLISHED = "published, no Spark commit"
    COMMITTED = "after the batch"

    @property
    def in_batch(self) -> bool:
        """Whether a kill here hits a batch in its middle."""
        return self not in {Stage.WAITING, Stage.COMMITTED}

    @property
    def completed(self) -> bool:
        """Whether the batch counts as done: its checkpoint exists."""
        return self in {Stage.PUBLISHED, Stage.COMMITTED}


@dataclass(frozen=True, slots=True)
class Progress:
    """The stages of a job's batches.

    A stage is right for a batch that runs for the first time: what an attempt that was killed
    has left behind can't be told from the work of the next one.
    """

    places: Places

    def stage(self, batch: int) -> Stage:
        """How far the batch has come; asked while the job runs, it may be further by now."""
        directory = f"{self.places.checkpoints}/{self.places.job.name}/chk-{batch + 1}"
        names = {
            entry.uri.rpartition("/")[2] for entry in file_system_for(directory).list(directory)
        }
        if self.committed(batch):
            return Stage.COMMITTED
        if METADATA_FILE in names:
            return Stage.PUBLISHED
        if (self.places.outputs[-1] / f"batch={batch}" / "_SUCCESS").exists():
            return Stage.SINK_DONE
        has_state = any(not name.startswith(".") for name in names)
        return Stage.STATE_WRITTEN if has_state else Stage.WAITING

    def last_stage(self, batch: int) -> Stage:
        """How far the batch has come when the job is dead."""
        if self.places.store is not None:
            time.sleep(_STORE_SETTLES_S)  # it may still be busy with the last request
        return self.stage(batch)

    def committed(self, batch: int) -> bool:
        """Whether Spark itself has noted that the batch is done."""
        return (self.places.spark_checkpoints / "commits" / str(batch)).exists()

    def next_batch(self) -> int:
        """The first batch that Spark has not noted as done."""
        commits = self.places.spark_checkpoints / "commits"
        done = [int(path.name) for path in commits.glob("*") if path.name.isdecimal()]
        return max(done, default=-1) + 1
