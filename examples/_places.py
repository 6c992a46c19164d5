"""Where everything of the demo stands: below one directory, but for checkpoints in a store."""

from dataclasses import dataclass
from pathlib import Path

JOB_ID = "flights"
"""The job's directory below that of the checkpoints."""


@dataclass(frozen=True, slots=True)
class Places:
    """The demo's directory.

    Attributes:
        root: The directory itself.
        store: URI of a directory for the checkpoints, if they go elsewhere.
    """

    root: Path
    store: str | None = None

    @property
    def marker(self) -> Path:
        """A file that says that the directory is the demo's, and may be used again."""
        return self.root / ".holdfast-demo"

    @property
    def source(self) -> Path:
        """The stream: one file a micro-batch."""
        return self.root / "source"

    @property
    def held_back(self) -> Path:
        """The part of the stream that comes when the job is to be drained."""
        return self.root / "held-back"

    @property
    def output(self) -> Path:
        """What the sink writes: `batch=<batch>/subtask=<subtask>/*.parquet`."""
        return self.root / "flights"

    @property
    def checkpoints(self) -> str:
        """URI of Holdfast's checkpoints: `<job>/chk-<batch + 1>/_metadata`."""
        return self.store or f"file://{self.root}/checkpoints"

    @property
    def spark_checkpoints(self) -> Path:
        """Spark's own checkpointLocation: `offsets/<batch>`, `commits/<batch>`."""
        return self.root / "spark-checkpoints"

    @property
    def job_log(self) -> Path:
        """What the job's Python side logs."""
        return self.root / "job.log"

    @property
    def spark_log(self) -> Path:
        """What the job prints, and what its JVM logs."""
        return self.root / "spark.log"

    @property
    def scratch(self) -> Path:
        """Temporary files of the job, which a killed JVM can't delete by itself."""
        return self.root / "scratch"
