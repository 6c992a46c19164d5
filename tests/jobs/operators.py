"""Operators for tests; a module of its own, so that executors can import it."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pyarrow as pa
from pyspark import TaskContext

from holdfast import BroadcastProcessFunction, StatefulFunction
from holdfast.backends import (
    FunctionInitializationContext,
    FunctionSnapshotContext,
    ListState,
    ListStateDescriptor,
    MapStateDescriptor,
)


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
    """Fails in its first attempt, after it has let rows through; a marker file tells that it did."""

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
    """Returns from `process` what it was told to, having read all rows."""

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


class TellsOfItself(StatefulFunction):
    """Adds to each row which subtask it came to; yields a row without id if there was none."""

    added = ", subtask int, parallelism int, first_group int, last_group int"

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        store = context.operator_state_store
        self.batches: ListState = store.get_union_list_state(ListStateDescriptor("batches", int))
        self.batches.update(sorted(set(self.batches.get())))
        groups = context.key_groups
        self.columns = {
            "subtask": context.subtask_index,
            "parallelism": context.parallelism,
            "first_group": groups.start_key_group if groups else None,
            "last_group": groups.end_key_group if groups else None,
        }

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.batches.add(len(self.batches))
            for name, value in self.columns.items():
                column = pa.array([value] * len(batch), pa.int32())
                batch = batch.append_column(name, column)  # noqa: PLW2901
            yield batch


class CountsByKey(StatefulFunction):
    """Counts rows by `name` in raw keyed state; rows bring their key group along."""

    schema = "name string, count long, subtask int"

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.subtask = context.subtask_index
        self.counts: dict[int, dict[str, int]] = {
            group.key_group: json.loads(group.read()) for group in context.raw_keyed_state_inputs
        }

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                counts = self.counts.setdefault(row["key_group"], {})
                counts[row["name"]] = counts.get(row["name"], 0) + 1
        rows = [
            {"name": name, "count": count, "subtask": self.subtask}
            for counts in self.counts.values()
            for name, count in counts.items()
        ]
        schema = pa.schema({"name": pa.string(), "count": pa.int64(), "subtask": pa.int32()})
        yield pa.RecordBatch.from_pylist(rows, schema)

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        output = context.raw_keyed_state_output()
        for key_group, counts in self.counts.items():
            output.start_new_key_group(key_group)
            output.write(json.dumps(counts).encode())


class AllKinds(StatefulFunction):
    """Yields what each kind of state holds at the beginning of a batch, and adds to each."""

    schema = (
        "subtask int, list array<long>, union array<long>, rules array<string>, raw array<string>"
    )

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        store = context.operator_state_store
        self.list: ListState = store.get_list_state(ListStateDescriptor("list", pa.int64()))
        self.union: ListState = store.get_union_list_state(ListStateDescriptor("union", pa.int64()))
        self.rules = store.get_broadcast_state(MapStateDescriptor("rules", str, str))
        self.raw = [partition.read() for partition in context.raw_operator_state_inputs]
        self.subtask = context.subtask_index

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held = {
            "subtask": self.subtask,
            "list": self.list.get(),
            "union": self.union.get(),
            "rules": sorted(f"{key}={value}" for key, value in self.rules.entries()),
            "raw": [part.decode() for part in self.raw],
        }
        types = {
            "subtask": pa.int32(),
            "list": pa.list_(pa.int64()),
            "union": pa.list_(pa.int64()),
            "rules": pa.list_(pa.string()),
            "raw": pa.list_(pa.string()),
        }
        yield pa.RecordBatch.from_pylist([held], pa.schema(types))
        for batch in batches:
            self.list.add_all(batch["id"])
            self.union.add_all(batch["id"])
            self.raw += [str(i).encode() for i in batch["id"].to_pylist()]
        self.rules.put("limit", "10")

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        output = context.raw_operator_state_output()
        for part in self.raw:
            output.start_new_partition()
            output.write(part)


class Rules(BroadcastProcessFunction):
    """Adds to each row the rule that holds for all rows, which comes by another stream."""

    schema = "id long, rule string, rules long, subtask int"

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        store = context.operator_state_store
        self.rules = store.get_broadcast_state(MapStateDescriptor("rules", str, str))
        self.columns = context.broadcast_schema
        self.subtask = context.subtask_index

    def process_broadcast(self, rows: pa.Table) -> None:
        assert rows.schema == self.columns
        self.rules.put_all(
            dict(zip(*(rows[name].to_pylist() for name in ("name", "rule")), strict=True))
        )

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = {
                "id": batch["id"],
                "rule": pa.array([self.rules.get("all")] * len(batch), pa.string()),
                "rules": pa.array([len(self.rules)] * len(batch), pa.int64()),
                "subtask": pa.array([self.subtask] * len(batch), pa.int32()),
            }
            yield pa.record_batch(columns)


class AwaitsAnotherPass(Groups):
    """Marks each pass over its rows by a number, and waits some seconds for the next one to begin.

    For a single subtask. If no other pass is begun it just takes long.
    """

    def __init__(self, size: int, passes: Path) -> None:
        super().__init__(size)
        self.passes = passes

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        number = len(list(self.passes.iterdir()))
        (self.passes / str(number)).touch(exist_ok=False)
        await_file(self.passes / str(number + 1), timeout_s=4)
        yield from super().process(batches)


class NoRowsBehind:
    """For `mapInArrow`: yields nothing, once there is a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        await_file(self.file, timeout_s=60)
        return (batch.slice(0, 0) for batch in batches)


def await_file(file: Path, *, timeout_s: float) -> None:
    """Wait for another process to make it, but no longer than that."""
    deadline = time.monotonic() + timeout_s
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def never_ends(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Keeps a task busy until it is killed."""
    for batch in batches:
        threading.Event().wait()
        yield batch


class DiesOnce(CountsLongs):
    """Kills its worker in its first attempt, behind a change of its state; a marker tells that it did."""

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


class AsksForNothing(StatefulFunction):
    """Lets rows through, and asks for none of the states that the operator has."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        pass

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
