"""The places of a demo job's files: below one directory, except for checkpoints in a store."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Job:
    """A job that the demo runs and kills.

    Attributes:
        name: The job's name: the module is `<package>.<name>_job`, and directories have this name too.
        outputs: Outputs that its sink writes in each batch, in this order.
        package: The package of its module.
    """

    name: str
    outputs: tuple[str, ...]
    package: str = "examples"


FLIGHTS = Job("flights", outputs=("flights",))
FLEET = Job("fleet", outputs=("delays", "sessions", "grounded"))


@dataclass(frozen=True, slots=True)
class Places:
    """A job's directory.

    Attributes:
        root: The directory itself.
        job: The job.
        store: URI of a directory for the checkpoints, if they go elsewhere.
    """

    root: Path
    job: Job
    store: str | None = None

    @property
    def source(self) -> Path:
        """The stream: one file a micro-batch."""
        return self.root / "source"

    @property
    def held_back(self) -> Path:
        """The part of the stream that comes when the job is to be drained."""
        return self.root / "held-back"

    @property
    def outputs(self) -> list[Path]:
        """Directories of the sink's outputs, in the order of writing; each has `batch=<batch>/*`."""
        return [self.root / name for name in self.job.outputs]

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
        """Log of the job's Python side."""
        return self.root / "job.log"

    @property
    def spark_log(self) -> Path:
        """Output of the job, and log of its JVM."""
        return self.root / "spark.log"

    @property
    def scratch(self) -> Path:
        """Temporary files of the job, which a killed JVM can't delete by itself."""
        return self.root / "scratch"
