"""Operators for tests, in a module that executors can import."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyspark import TaskContext

from holdfast import BroadcastProcessFunction, KeyedProcessFunction, StatefulFunction
from holdfast.backends import (
    FunctionInitializationContext,
    FunctionSnapshotContext,
    ListState,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
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


class NotifiedGroups(Groups):
    """Also records the notifications that the driver gets."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.notifications: list[tuple[str, int]] = []

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.notifications.append(("complete", checkpoint_id))

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.notifications.append(("aborted", checkpoint_id))


class FailsOnce(Groups):
    """Fails in its first attempt after it has let rows through, and leaves a marker file."""

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


class RowNumbers(StatefulFunction):
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
    """Returns the given object from `process`, having read all rows."""

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


class FailingListener(Groups):
    """Fails whenever it is notified of a checkpoint."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        raise RuntimeError("as planned")


class WrongColumns(Groups):
    """Yields columns that differ from its schema."""

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.select(["name"])


class SubtaskReporter(StatefulFunction):
    """Adds to each row the subtask that it was routed to, with the subtask's key groups."""

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


class RawKeyedCounts(StatefulFunction):
    """Counts rows by `name` in raw keyed state; rows have a column with their key group."""

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


class AllOperatorStates(StatefulFunction):
    """Yields the contents of each operator state at the beginning of a batch, and adds to each."""

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
    """Adds the last broadcast rule to each row."""

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


class AwaitsNextPass(Groups):
    """Leaves a numbered file for each pass over its rows, and waits up to four seconds for the next pass.

    For a single subtask.
    """

    def __init__(self, size: int, passes: Path) -> None:
        super().__init__(size)
        self.passes = passes

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        number = len(list(self.passes.iterdir()))
        (self.passes / str(number)).touch(exist_ok=False)
        await_file(self.passes / str(number + 1), timeout_s=4)
        yield from super().process(batches)


class DropRowsAfter:
    """For `mapInArrow`: drops all rows, once there is a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        await_file(self.file, timeout_s=60)
        return (batch.slice(0, 0) for batch in batches)


def await_file(file: Path, *, timeout_s: float) -> None:
    """Wait for another process to create a file, for at most a time."""
    deadline = time.monotonic() + timeout_s
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def never_ends(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Keep a task busy until it is killed."""
    for batch in batches:
        threading.Event().wait()
        yield batch


class DiesOnce(RowNumbers):
    """Kills its worker in its first attempt after a change of its state, and leaves a marker file."""

    def __init__(self, marker: Path, *, after_rows: int) -> None:
        self.marker = marker
        self.after_rows = after_rows

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from super().process(batches)
        if len(self.seen) > self.after_rows and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def local_directories(_: object) -> list[str]:
    """Return the directories that Spark gives to the task."""
    return os.environ["SPARK_LOCAL_DIRS"].split(",")


class StatelessFunction(StatefulFunction):
    """Lets rows through, and declares no state."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        pass

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches


class TimesReporter(StatefulFunction):
    """Yields a row for itself, and a row for each of its rows, all with the times of the batch."""

    schema = "id long, batch_time long, watermark long, late_watermark long"
    time_mode = "event"

    def __init__(self, *, keeps_late_rows: bool = False) -> None:
        self.keeps_late_rows = keeps_late_rows

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.times = [context.batch_time, context.watermark, context.times.late_watermark]

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ids = [None, *(i for batch in batches for i in batch["id"].to_pylist())]
        times = [pa.array([time] * len(ids), pa.int64()) for time in self.times]
        names = ["id", "batch_time", "watermark", "late_watermark"]
        yield pa.RecordBatch.from_arrays([pa.array(ids, pa.int64()), *times], names=names)


TOTALS = pa.schema([("rows", pa.int64()), ("ids", pa.int64())])


class Totals(StatefulFunction):
    """Counts rows and adds up ids by key, in columns; yields the totals of the changed keys."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.store = context.keyed_state_store
        self.totals = self.store.get_reducing_state(
            ReducingStateDescriptor("totals", {"rows": "count", "ids": "sum"}, TOTALS)
        )

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keys = self.store.keys(batch)
            self.totals.columns.add(keys, {"ids": batch["id"]})
            rows, ids = self.totals.columns.get(keys).flatten()
            yield pa.record_batch([keys.columns[0], rows, ids], ["key", "rows", "ids"])


class Days(KeyedProcessFunction):
    """Counts the rows of each name and day."""

    def open(self, context: FunctionInitializationContext) -> None:
        self.counts = context.keyed_state_store.get_state(ValueStateDescriptor("counts", int))

    def process_key(self, key: Any, rows: pa.RecordBatch) -> Iterable[Any]:
        assert key.day is None or isinstance(key.day, datetime)
        self.counts.update((self.counts.value() or 0) + rows.num_rows)
        yield key.name, key.day, self.counts.value()


class SharesTask(Groups):
    """Leaves a file once it has started in a subtask.

    Args:
        size: As of `Groups`.
        directory: The directory of these files.
        dies: Whether the second subtask of a task kills its worker once, as soon as there is a file `uploading`.
    """

    def __init__(self, size: int, directory: Path, *, dies: bool = False) -> None:
        super().__init__(size)
        self.directory = directory
        self.dies = dies

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        super().initialize_state(context)
        self.subtask = context.subtask_index

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        (self.directory / f"started-{self.subtask}").touch()
        task = TaskContext.get()
        assert task is not None
        in_task = self.directory / f"task-{task.taskAttemptId()}"
        if self.dies and in_task.exists():
            await_file(self.directory / "uploading", timeout_s=60)
            try:
                (self.directory / "killed").touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        in_task.touch()
        yield from super().process(batches)
