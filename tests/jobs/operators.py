"""Operators for tests; a module of its own, so that executors can import it."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pyarrow as pa
from pyspark import TaskContext

from holdfast.backends import FunctionInitializationContext, ListState, ListStateDescriptor
from holdfast.spark import StatefulFunction


class Groups(StatefulFunction):
    """Lets rows through in groups of `size`, and keeps the rest."""

    def __init__(self, size: int) -> None:
        self.size = size

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        descriptor = ListStateDescriptor("rows", context.input_schema)
        self.rows: ListState = context.operator_state_store.get_list_state(descriptor)

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.rows.add_all(batch)
        rows = self.rows.to_table()
        whole = len(rows) - len(rows) % self.size
        yield from rows.slice(0, whole).to_batches()
        self.rows.update(rows.slice(whole))


class GroupsToldOnDriver(Groups):
    """Also writes down what the driver is told of checkpoints."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.told: list[tuple[str, int]] = []

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.told.append(("complete", checkpoint_id))

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.told.append(("aborted", checkpoint_id))


class FailsOnce(Groups):
    """Its first attempt fails after it has let rows through; a marker file tells that it did."""

    def __init__(self, size: int, marker: Path) -> None:
        super().__init__(size)
        self.marker = marker

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from super().process(batches)
        task = TaskContext.get()
        if task is not None and task.partitionId() == 0 and not self.marker.exists():
            self.marker.touch()
            raise RuntimeError("as planned")


class AlwaysFails(Groups):
    """Fails on every row."""

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            raise RuntimeError("as planned")


class CountsLongs(StatefulFunction):
    """Numbers the rows of its subtask over all batches; another state type and output schema."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        descriptor = ListStateDescriptor("rows", pa.int64())
        self.seen = context.operator_state_store.get_list_state(descriptor)
        self.subtask = context.subtask_index

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            start = len(self.seen)
            self.seen.add_all(batch["id"])
            yield pa.record_batch(
                {
                    "id": batch["id"],
                    "nth": pa.array(range(start, start + len(batch)), pa.int64()),
                    "subtask": pa.array([self.subtask] * len(batch), pa.int32()),
                }
            )


class StopsReading(Groups):
    """Returns without having read its rows."""

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return iter(())


class Returns(Groups):
    """Its `process` returns what it was told to, having read all rows."""

    def __init__(self, returned: object) -> None:
        super().__init__(1)
        self.returned = returned

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        return cast("Iterator[pa.RecordBatch]", self.returned)


class YieldsTables(Groups):
    """Yields tables instead of batches."""

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.Table.from_batches(list(super().process(batches)), self.rows.to_table().schema)


class BadListener(Groups):
    """Fails whenever it is told of a checkpoint."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        raise RuntimeError("as planned")


class WrongColumns(Groups):
    """Yields what its schema doesn't say."""

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.select(["name"])


def never_ends(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Keeps a task busy until it is killed."""
    for batch in batches:
        threading.Event().wait()
        yield batch


class DiesOnce(CountsLongs):
    """Its first attempt kills its worker once it has changed its state; a marker tells that it did."""

    def __init__(self, marker: Path, *, after_rows: int) -> None:
        self.marker = marker
        self.after_rows = after_rows

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from super().process(batches)
        if len(self.seen) > self.after_rows and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def local_directories(_: object) -> list[str]:
    """Directories that Spark gives to the task."""
    return os.environ["SPARK_LOCAL_DIRS"].split(",")
