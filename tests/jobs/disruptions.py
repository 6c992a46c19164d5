"""Operators and sinks that wait or fail in the second batch, at the signal of a test."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from jobs.job import Job
from jobs.killed import BATCH
from jobs.operators import Groups
from jobs.processes import Signals
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from holdfast.backends import FunctionInitializationContext


class ShuffledJob(Job):
    """A job whose rows are the output of a shuffle. A task that Spark repeats may get them in another order."""

    def stream(self) -> DataFrame:
        spread = super().stream().repartition(8)
        # A condition that Spark can't compute earlier, so that it does not join the two shuffles into one.
        numbered = spread.withColumn("part", F.spark_partition_id()).where("part >= 0")
        return numbered.drop("part").repartition(4, "id")


class WatchedGroups(Groups):
    """Reports the process of each subtask in the batch once its rows are through."""

    def __init__(self, size: int, signals: Signals) -> None:
        super().__init__(size)
        self.signals = signals

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        super().initialize_state(context)
        self.subtask = context.subtask_index
        self.is_disturbed = context.restored_checkpoint_id == BATCH

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from super().process(batches)
        if self.is_disturbed:
            self.signals.give(f"had {self.subtask}", str(os.getpid()))
            self.disturb()

    def disturb(self) -> None:
        """Wait or fail after all rows were let through."""


class WaitingGroups(WatchedGroups):
    """The first attempt of subtask 0 waits."""

    def disturb(self) -> None:
        if self.subtask == 0 and self.signals.give("waits", str(os.getpid())):
            self.signals.wait("go")


class WaitingInSharedTask(WatchedGroups):
    """The first attempt waits whose task has run another subtask before."""

    def disturb(self) -> None:
        task = TaskContext.get()
        assert task is not None
        is_first = self.signals.give(f"attempt {task.taskAttemptId()}")
        if not is_first and self.signals.give("waits", str(os.getpid())):
            self.signals.wait("go")


class WaitingAndFailingGroups(WaitingGroups):
    """Also, subtask 1 fails until it is repaired."""

    def disturb(self) -> None:
        super().disturb()
        if self.subtask == 1 and not self.signals.is_given("repaired"):
            self.signals.wait("waits")
            raise RuntimeError("as planned")


class RetriedGroups(WatchedGroups):
    """The first attempt of subtask 0 fails; both attempts report their executor's directory."""

    def disturb(self) -> None:
        if self.subtask == 0:
            is_first = self.signals.give("first", os.getcwd())
            if is_first:
                raise RuntimeError("as planned")
            self.signals.give("second", os.getcwd())


class SpeculativeGroups(WatchedGroups):
    """The first attempt of subtask 0 waits until Spark has begun a second one."""

    def disturb(self) -> None:
        task = TaskContext.get()
        if self.subtask == 0 and task is not None:
            if self.signals.give("waits", str(task.taskAttemptId())):
                self.signals.wait("go")
            else:
                self.signals.give("twin", str(task.taskAttemptId()))


@dataclass(frozen=True, slots=True)
class HoldRows:
    """For `mapInArrow`: each task in the batch waits when it gets here."""

    signals: Signals

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        self.signals.give(f"waits {task.partitionId()}")
        self.signals.wait("go")
        yield from batches


@dataclass(frozen=True, slots=True)
class ShufflingSink:
    """Has a shuffle between the operator and its write; two tasks wait after it.

    Both have to: a task that is done no longer needs rows, and one that waits may have fetched all of its rows. With
    a core for each executor each has a task, so a lost executor takes rows and a task that needs them.
    """

    signals: Signals
    waits = ("waits 0", "waits 1")

    def __call__(self, job: Job, rows: DataFrame, batch_id: int) -> None:
        rows = rows.repartition(len(self.waits))
        if batch_id == BATCH:
            rows = rows.mapInArrow(HoldRows(self.signals), rows.schema)
        job.write(rows, batch_id)


@dataclass(frozen=True, slots=True)
class WaitingSink:
    """Waits in the batch before it writes, once."""

    signals: Signals
    waits = ("waits",)

    def __call__(self, job: Job, rows: DataFrame, batch_id: int) -> None:
        if batch_id == BATCH and self.signals.give("waits"):
            self.signals.wait("go")
        job.write(rows, batch_id)
