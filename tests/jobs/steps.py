"""A driver that dies at every step of a batch: `python -m jobs.steps DIR` runs a job for each step.

Each job blocks just before its step; when all do, the driver is killed, with its JVM. One more job
gets through, and records which steps there are.
"""

import json
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any
from unittest import mock

from jobs.disruptions import WaitingGroups
from jobs.job import Job, local_spark
from jobs.killed import BATCH, GROUP, ROWS, die_with_blocked_jobs
from jobs.processes import Signals, wait_until_blocked
from pyspark.sql import DataFrame, SparkSession

from holdfast.locations.coordination import CheckpointsCleaner

STEPS = (
    "Spark calls the operator",
    # The driver claims the job.
    "open _epoch/.2.*.inprogress",
    "link _epoch/2",
    "unlink _epoch/.2.*.inprogress",
    "unlink _epoch/1",
    # The checkpoint is begun, the sink runs.
    "mkdir chk-2",
    "a task ends",
    "the sink returns",
    # It is completed: all reports are there.
    "open chk-2/._metadata.*.inprogress",
    "link chk-2/_metadata",
    "unlink chk-2/._metadata.*.inprogress",
    "the operator is notified",
    # Older checkpoints are deleted.
    "unlink chk-1/_metadata",
    "unlink chk-1/*",
    "rmdir chk-1",
    "Spark commits",
)
"""The steps before which the driver is killed, in order; the clean-up runs concurrently with the last step."""

COMMITTED_FROM = STEPS.index("link chk-2/_metadata") + 1
"""Number of the first step before which the checkpoint exists."""

THROUGH = "through"
"""Name of the job that gets through."""

_RANDOM = re.compile(r"[0-9a-f]{8}-[0-9a-f]{32}|[0-9a-f]{32}")


class Steps:
    """Blocks each job at its step.

    Attributes:
        seen: The steps that the job that gets through has taken.
    """

    def __init__(self, directory: Path) -> None:
        self.seen: set[str] = set()
        self._directory = directory
        self._blocked: set[str] = set()

    def before(self, job: str, step: str) -> None:
        """Block a job that is about to take its step in its second batch."""
        if job == THROUGH:
            self.seen.add(step)
        elif STEPS[int(job)] == step:
            self._blocked.add(job)
            threading.Event().wait()

    def before_call(self, call: str, path: str) -> None:
        """Treat a change on disk as a step."""
        name, inside, below = path.removeprefix(f"{self._directory}/").partition("/checkpoints/")
        _, _, file = below.partition("/")
        is_in_second_batch = (self._directory / name / "second").exists()
        if inside and is_in_second_batch and "_probe-" not in file:
            self.before(name, f"{call} {_RANDOM.sub('*', file)}")

    def is_blocked(self, job: str) -> bool:
        """Return whether a job is where it is to die."""
        in_a_task = Signals(self._directory / job / "signals")
        return job in self._blocked or in_a_task.is_given("waits")


class WatchedCalls:
    """The module `os` for `file://`, whose calls that change something are steps."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            self._steps.before_call("open", path)
        return os.open(path, flags, mode)

    def link(self, source: str, target: str) -> None:
        self._steps.before_call("link", target)
        os.link(source, target)

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        self._steps.before_call("mkdir", path)
        os.mkdir(path, mode)

    def rmdir(self, path: str) -> None:
        self._steps.before_call("rmdir", path)
        os.rmdir(path)

    def unlink(self, path: str) -> None:
        self._steps.before_call("unlink", path)
        os.unlink(path)


class StepGroups(WaitingGroups):
    """Treats the driver's notification as a step; in the job that is to die in a task, a task waits."""

    def __init__(self, job: str, signals: Signals) -> None:
        super().__init__(GROUP, signals)
        self.job = job

    def disturb(self) -> None:
        if self.job != THROUGH and STEPS[int(self.job)] == "a task ends":
            super().disturb()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if checkpoint_id == BATCH + 1:
            RUNNING[0].before(self.job, "the operator is notified")


RUNNING: list[Steps] = []
"""The steps of this process, for operators on the driver, which have to be pickled."""


def job_of(spark: SparkSession, directory: Path, name: str) -> Job:
    """Return one of the jobs, in its own session."""
    job = Job(spark.newSession(), directory / name)
    job.settings["spark.holdfast.state.inline-threshold"] = "0"  # all state is in files
    return job


def run(job: Job, name: str, steps: Steps) -> None:
    """Run a job for two batches, the second after a restart."""
    signals = Signals(job.directory / "signals")

    def sink(rows: DataFrame, batch_id: int) -> None:
        job.write(rows, batch_id)
        if batch_id == BATCH:
            steps.before(name, "the sink returns")

    operator = job.operator(StepGroups(name, signals), sink=sink)

    def function(batch: DataFrame, batch_id: int) -> None:
        if batch_id == BATCH:
            steps.before(name, "Spark calls the operator")
        operator(batch, batch_id)
        if batch_id == BATCH:
            steps.before(name, "Spark commits")

    job.feed(files=1, rows=ROWS)
    job.run(function)
    (job.directory / "second").touch()
    job.feed(files=1, rows=ROWS)
    job.run(function)


def main(directory: Path) -> None:
    """Bring all jobs to where they are to die."""
    names = [*map(str, range(len(STEPS))), THROUGH]
    spark = local_spark(cores=4)  # one task is blocked
    steps = Steps(directory)
    RUNNING.append(steps)
    cleaner = CheckpointsCleaner(threads=2 * len(names))  # some are blocked
    with (
        die_with_blocked_jobs(spark, len(names)) as pool,
        mock.patch("holdfast.locations.file_systems.local.os", WatchedCalls(steps)),
        mock.patch("holdfast.spark.query.query_run.CLEANER", cleaner),
    ):
        ran = {
            name: pool.submit(run, job_of(spark, directory, name), name, steps) for name in names
        }
        ran.pop(THROUGH).result()
        wait_until_blocked(ran, steps.is_blocked)
        (directory / "seen.json").write_text(json.dumps(sorted(steps.seen)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
