"""Any sequence of operations on columnar tables of several subtasks, compared with dictionaries."""

import copy
import itertools
import os
import random
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from contracts.keyed_rows import GROUPS, KEYS, identities, key_group, sort_key, timer_sort_key
from contracts.placeholders import resolve_placeholders
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.backends.keyed.segments import ColumnarStateTables, MergePolicy, Workspace
from holdfast.backends.keyed.table import Operation, StateTable, StateTables, TableRows, TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.locations import FileSystemCheckpointStorage
from holdfast.locations.adapters import FileStateHandle, file_system_for
from holdfast.locations.handles import SegmentsStateHandle

KEY_COUNT = 60
SUBS = 6
TTL_MS = 10


def specs(kind: str) -> dict[str, TableSpec]:
    key = KEYS[kind]
    value = pa.schema([("v", pa.int64()), ("w", pa.string())])
    lists = pa.schema([("value", pa.list_(pa.int64()))])
    folded = pa.schema(
        [("sum", pa.int64()), ("min", pa.int32()), ("max", pa.string()), ("any", pa.bool_())]
    )
    sub, time = pa.schema([("sub", pa.string())]), pa.schema([("time", pa.int64())])
    return {
        "v": TableSpec("v", "value", key, value, ttl_ms=TTL_MS, is_struct=True),
        "l": TableSpec("l", "list", key, lists, folds=("concatenate",)),
        "r": TableSpec(
            "r", "reducing", key, folded, folds=("sum", "min", "max", "any"), is_struct=True
        ),
        "m": TableSpec("m", "map", key, pa.schema([("v", pa.float64())]), sub_key=sub),
        "t": TableSpec("t", "timers", key, pa.schema([]), sub_key=time),
    }


@dataclass
class Model:
    """The rows of a subtask's tables."""

    v: dict[int, tuple[int, str | None, int]] = field(default_factory=dict)
    l: dict[int, list[int]] = field(default_factory=dict)  # noqa: E741
    r: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    m: dict[tuple[int, str], float] = field(default_factory=dict)
    t: set[tuple[int, int]] = field(default_factory=set)

    def part(self, groups: KeyGroupRange) -> "Model":
        mine = copy.deepcopy(self)
        mine.v = {k: v for k, v in mine.v.items() if key_group(k) in groups}
        mine.l = {k: v for k, v in mine.l.items() if key_group(k) in groups}
        mine.r = {k: v for k, v in mine.r.items() if key_group(k) in groups}
        mine.m = {k: v for k, v in mine.m.items() if key_group(k[0]) in groups}
        mine.t = {k for k in mine.t if key_group(k[0]) in groups}
        return mine

    def add(self, other: "Model") -> None:
        for name in "vlrm":
            getattr(self, name).update(getattr(other, name))
        self.t |= other.t


def smaller(left: Any, right: Any, choose: Callable[..., Any]) -> Any:
    """Fold two operands; nulls are ignored."""
    if left is None or right is None:
        return left if right is None else right
    return choose(left, right)


def together(older: tuple[Any, ...] | None, newer: tuple[Any, ...]) -> tuple[Any, ...]:
    if older is None:
        return newer
    functions: Sequence[Callable[..., Any]] = (lambda a, b: a + b, min, max, lambda a, b: a or b)
    return tuple(
        smaller(left, right, choose)
        for left, right, choose in zip(older, newer, functions, strict=True)
    )


def files_below(directory: str) -> Iterator[str]:
    for entry in file_system_for(directory).list(directory):
        if entry.is_directory:
            yield from files_below(entry.uri)
        else:
            yield entry.uri


@dataclass
class Subtask:
    groups: KeyGroupRange
    tables: StateTables
    model: Model
    by_name: Mapping[str, StateTable]


numbers = st.one_of(
    st.lists(st.integers(0, 9), min_size=1, max_size=12, unique=True),
    st.lists(st.integers(0, KEY_COUNT - 1), min_size=1, max_size=12, unique=True),
    st.just(list(range(KEY_COUNT))),
)
seeds = st.integers(0, 1000)


class ColumnarMachine(RuleBasedStateMachine):
    """Subtasks of one operator; a checkpoint is of all of them."""

    @initialize(
        kind=st.sampled_from(sorted(KEYS)),
        weak=st.sampled_from([0, 1, 3, None]),
        fan_in=st.integers(2, 4),
        shape=st.sampled_from([(100.0, 800.0), (1e3, 8e3), (150.0, 1e9), (300.0, 1e9), (1e9, 8e9)]),
        rewrite=st.sampled_from([0.0, 0.0, 1.0, 3.0]),
        inline=st.sampled_from([0, 3000, 1 << 20]),
        in_memory=st.sampled_from([0, 3000, 1 << 20]),
        small=st.sampled_from([(1, 2, 3, 7), (4096, 1 << 16, 1 << 15, 1 << 18)]),
        local=st.booleans(),
        cached=st.booleans(),
    )
    def start(
        self,
        *,
        kind: str,
        weak: int | None,
        fan_in: int,
        shape: tuple[float, float],
        rewrite: float,
        inline: int,
        in_memory: int,
        small: tuple[int, int, int, int],
        local: bool,
        cached: bool,
    ) -> None:
        self.patch = pytest.MonkeyPatch()
        keyed = "holdfast.backends.keyed"
        self.patch.setattr(f"{keyed}.segments.segment_writer.MIN_ROWS", small[0])
        self.patch.setattr(f"{keyed}.segments.merging.CHUNK_ROWS", small[1])
        self.patch.setattr(f"{keyed}.segments.side_tables.STEP_ROWS", small[2])
        self.patch.setattr(f"{keyed}.segments.table_writer.STEP_ROWS", small[3])
        self.patch.setattr(f"{keyed}.segments.segment_store.IN_MEMORY_BYTES", in_memory)
        self.kind, self.weak = kind, weak
        self.specs = specs(kind)
        self.policy = MergePolicy(
            fan_in=fan_in,
            level_bytes=shape[0],
            tier_bytes=shape[1],
            min_step_bytes=shape[0] / 2,
            max_step_bytes=shape[0],
            rewrite_factor=rewrite,
        )
        self.local = tempfile.mkdtemp() if local else None
        self.workspace = Workspace() if cached else None
        self.directory = f"memory:///{uuid.uuid4().hex}"
        file_system_for(self.directory).prepare_directory(self.directory)
        storage = FileSystemCheckpointStorage(self.directory, inline_threshold=inline)
        self.access = storage.create_checkpoint_storage("job")
        self.access.initialize_base_locations_for_checkpoint()
        self.now = 0
        self.checkpoint = 0
        self.completed: list[tuple[SegmentsStateHandle, Model]] = []
        self.subtasks: list[Subtask] = []
        self.open([KeyGroupRange(0, GROUPS - 1)], [], [Model()])

    def teardown(self) -> None:
        if hasattr(self, "patch"):
            self.patch.undo()
            file_system_for(self.directory).delete_tree(self.directory)
            if self.local is not None:
                shutil.rmtree(self.local)

    def open(
        self,
        ranges: Sequence[KeyGroupRange],
        handles: Sequence[SegmentsStateHandle],
        models: Sequence[Model],
    ) -> None:
        for subtask in self.subtasks:
            subtask.tables.close()
            subtask.tables.close()
        self.subtasks = []
        for groups, model in zip(ranges, models, strict=True):
            parts = [
                part
                for handle in handles
                if (part := handle.intersection(groups.start_key_group, groups.end_key_group))
            ]
            tables = ColumnarStateTables(
                groups,
                parts,
                directory=self.local,
                policy=self.policy,
                workspace=self.workspace,
            )
            tables.advance_time(self.now)
            by_name = {name: tables.table(spec) for name, spec in self.specs.items()}
            self.subtasks.append(Subtask(groups, tables, model, by_name))

    def identify(
        self, subtask: Subtask, name: str, wanted: Sequence[int], subs: Sequence[Any] = ()
    ) -> tuple[list[int], Any]:
        """Return positions in `wanted` in the order of their identities, and the identities."""
        if name == "t":
            keys = [timer_sort_key(n, sub) for n, sub in zip(wanted, subs, strict=True)]
        elif subs:
            keys = [sort_key(n, self.weak, sub) for n, sub in zip(wanted, subs, strict=True)]
        else:
            keys = [sort_key(n, self.weak) for n in wanted]
        return identities(self.specs[name], self.kind, wanted, keys, subs)

    def mine(self, wanted: Sequence[int]) -> list[tuple[Subtask, list[int]]]:
        parts = [
            (subtask, [n for n in wanted if key_group(n) in subtask.groups])
            for subtask in self.subtasks
        ]
        return [(subtask, part) for subtask, part in parts if part]

    # ---- values

    @rule(wanted=numbers, seed=seeds)
    def put(self, wanted: list[int], seed: int) -> None:
        for subtask, part in self.mine(wanted):
            order, keys = self.identify(subtask, "v", part)
            rows = [(seed * 100 + n, None if (n + seed) % 4 == 0 else f"w{seed}") for n in part]
            v = pa.array([rows[at][0] for at in order])
            w = pa.array([rows[at][1] for at in order], pa.string())
            subtask.by_name["v"].write(keys, [v, w])
            for n, row in zip(part, rows, strict=True):
                subtask.model.v[n] = (*row, self.now)

    @rule(wanted=numbers, seed=seeds, name=st.sampled_from("vlr"))
    def delete(self, wanted: list[int], seed: int, name: str) -> None:
        for subtask, part in self.mine(wanted):
            _, keys = self.identify(subtask, name, part)
            blank = [pa.nulls(len(part), f.type) for f in self.specs[name].values]
            subtask.by_name[name].write(keys, blank, Operation.DELETE)
            for n in part:
                getattr(subtask.model, name).pop(n, None)

    @rule(wanted=numbers, include=st.booleans())
    def get(self, wanted: list[int], *, include: bool) -> None:
        for subtask, part in self.mine(wanted):
            order, keys = self.identify(subtask, "v", part)
            present, (v, w) = subtask.by_name["v"].get(keys, include_expired=include)
            for at, there, *row in zip(order, present, v.to_pylist(), w.to_pylist(), strict=True):
                expected = subtask.model.v.get(part[at])
                if expected is not None and expected[2] + TTL_MS > self.now:
                    assert there
                    assert tuple(row) == expected[:2]
                elif not include:
                    assert (bool(there), row) == (False, [None, None])

    @rule(by=st.integers(1, 12))
    def wait(self, by: int) -> None:
        self.now += by
        for subtask in self.subtasks:
            subtask.tables.advance_time(self.now)

    # ---- lists and folds

    @rule(wanted=numbers, seed=seeds, is_put=st.booleans())
    def append(self, wanted: list[int], seed: int, *, is_put: bool) -> None:
        for subtask, part in self.mine(wanted):
            order, keys = self.identify(subtask, "l", part)
            lists = [[seed * 1000 + n] * ((n + seed) % 3) for n in part]
            operation = Operation.PUT if is_put else Operation.APPEND
            column = pa.array([lists[at] for at in order], pa.list_(pa.int64()))
            subtask.by_name["l"].write(keys, [column], operation)
            for n, elements in zip(part, lists, strict=True):
                before = [] if is_put else subtask.model.l.get(n, [])
                subtask.model.l[n] = before + elements

    @rule(wanted=numbers)
    def get_list(self, wanted: list[int]) -> None:
        for subtask, part in self.mine(wanted):
            order, keys = self.identify(subtask, "l", part)
            present, (lists,) = subtask.by_name["l"].get(keys)
            expected = [subtask.model.l.get(part[at]) for at in order]
            assert lists.to_pylist() == expected
            assert present.tolist() == [elements is not None for elements in expected]

    @rule(wanted=numbers, seed=seeds)
    def reduce(self, wanted: list[int], seed: int) -> None:
        random_ = random.Random(seed)
        for subtask, part in self.mine(wanted):
            order, keys = self.identify(subtask, "r", part)
            operands = [
                (
                    random_.randrange(-99, 99),
                    random_.choice([None, random_.randrange(99)]),
                    random_.choice([None, "a", "", "bb"]),
                    random_.choice([None, True, False]),
                )
                for _ in part
            ]
            operations = np.array(
                [random_.choice([Operation.APPEND, Operation.APPEND, Operation.PUT]) for _ in part],
                np.uint8,
            )
            columns = [
                pa.array([operands[at][i] for at in order], f.type)
                for i, f in enumerate(self.specs["r"].values)
            ]
            subtask.by_name["r"].write(keys, columns, operations[order])
            for n, operand, operation in zip(part, operands, operations, strict=True):
                is_put = operation == Operation.PUT
                older = None if is_put else subtask.model.r.get(n)
                subtask.model.r[n] = together(older, operand)

    @rule(wanted=numbers)
    def get_reduced(self, wanted: list[int]) -> None:
        for subtask, part in self.mine(wanted):
            order, keys = self.identify(subtask, "r", part)
            present, columns = subtask.by_name["r"].get(keys)
            rows = list(zip(*(column.to_pylist() for column in columns), strict=True))
            expected = [subtask.model.r.get(part[at]) for at in order]
            assert rows == [row or (None,) * 4 for row in expected]
            assert present.tolist() == [row is not None for row in expected]

    # ---- maps

    def entries(self, part: Sequence[int], seed: int) -> list[tuple[int, str]]:
        random_ = random.Random(seed)
        count = random_.randint(1, 20)
        return sorted({(random_.choice(part), str(random_.randrange(SUBS))) for _ in range(count)})

    @rule(wanted=numbers, seed=seeds, delete=st.booleans())
    def put_map(self, wanted: list[int], seed: int, *, delete: bool) -> None:
        for subtask, part in self.mine(wanted):
            entries = self.entries(part, seed)
            order, keys = self.identify(
                subtask, "m", [n for n, _ in entries], [sub for _, sub in entries]
            )
            gone = [delete and (n + seed) % 2 == 0 for n, _ in entries]
            values = pa.array([float(seed + at) for at in order])
            operations = np.where([gone[at] for at in order], Operation.DELETE, Operation.PUT)
            subtask.by_name["m"].write(keys, [values], operations.astype(np.uint8))
            for at, entry in enumerate(entries):
                if gone[at]:
                    subtask.model.m.pop(entry, None)
                else:
                    subtask.model.m[entry] = float(seed + at)

    @rule(wanted=numbers, seed=seeds)
    def get_map(self, wanted: list[int], seed: int) -> None:
        for subtask, part in self.mine(wanted):
            entries = self.entries(part, seed)
            order, keys = self.identify(
                subtask, "m", [n for n, _ in entries], [sub for _, sub in entries]
            )
            _, (values,) = subtask.by_name["m"].get(keys)
            assert values.to_pylist() == [subtask.model.m.get(entries[at]) for at in order]

    @rule(wanted=numbers)
    def items(self, wanted: list[int]) -> None:
        low = (1 << 24) - 1
        for subtask, part in self.mine(wanted):
            first = sorted({sort_key(n, self.weak, "") & ~low for n in part})
            ranges = np.array(first, np.uint64)
            rows = subtask.by_name["m"].rows_between(ranges, ranges + np.uint64(low + 1))
            read = sorted(
                zip(
                    rows.identities.columns[-1].to_pylist(), rows.values[0].to_pylist(), strict=True
                )
            )
            expected = [
                (sub, value)
                for (n, sub), value in subtask.model.m.items()
                if sort_key(n, self.weak, "") & ~low in set(first)
            ]
            assert read == sorted(expected)
            assert (np.diff(rows.identities.sort_keys.astype(np.int64)) >= 0).all()

    # ---- timers

    @rule(wanted=numbers, seed=seeds, delete=st.booleans())
    def register(self, wanted: list[int], seed: int, *, delete: bool) -> None:
        random_ = random.Random(seed)
        times = [-5000, 0, 500, 1023, 1024, 3000, 9000]
        for subtask, part in self.mine(wanted):
            timers = sorted(
                {
                    (random_.choice(part), random_.choice(times) + random_.randrange(3))
                    for _ in range(random_.randint(1, 15))
                }
            )
            _, keys = self.identify(subtask, "t", [n for n, _ in timers], [t for _, t in timers])
            operation = Operation.DELETE if delete else Operation.PUT
            subtask.by_name["t"].write(keys, [], operation)
            if delete:
                subtask.model.t -= set(timers)
            else:
                subtask.model.t |= set(timers)

    @rule(until=st.sampled_from([-5000, -1, 0, 501, 1023, 1024, 1025, 3001, 9001]))
    def fire(self, until: int) -> None:
        for subtask in self.subtasks:
            table = subtask.by_name["t"]
            groups = [g << 48 for g in subtask.groups]
            end = [timer_sort_key(0, until) & ((1 << 48) - 1 ^ 0xFFFF) | g for g in groups]
            rows = table.rows_between(
                np.array(groups, np.uint64), np.array(end, np.uint64) + np.uint64(1 << 16)
            )
            times = [t for t in rows.identities.columns[-1].to_pylist() if t <= until]
            assert sorted(times) == sorted(t for _, t in subtask.model.t if t <= until)
            table.delete_up_to(until)
            subtask.model.t = {timer for timer in subtask.model.t if timer[1] > until}

    # ---- checkpoints

    @rule(ending=st.sampled_from(["complete", "complete", "abort", "cancel", "lose", "reopen"]))
    def snapshot(self, ending: str) -> None:
        self.checkpoint += 1
        location = self.access.initialize_location_for_checkpoint(self.checkpoint)
        before = self.files()
        parts = [subtask.tables.snapshot(self.checkpoint, location) for subtask in self.subtasks]
        if ending == "cancel":
            for part in parts:
                part.cancel()
            for subtask in self.subtasks:
                subtask.tables.notify_checkpoint_aborted(self.checkpoint)
            assert self.files() == before
            return
        known = {name: s for handle, _ in self.completed for name, s in handle.segments.items()}
        handles = [
            resolve_placeholders(handle, known)
            for part in parts
            for handle in part.run().state.managed_keyed
            if isinstance(handle, SegmentsStateHandle)
        ]
        models = [copy.deepcopy(subtask.model) for subtask in self.subtasks]
        if ending in ("complete", "reopen"):
            self.completed = list(zip(handles, models, strict=True))
            self.sweep()
            if ending == "reopen":
                self.restart([subtask.groups for subtask in self.subtasks])
                return
            for subtask in self.subtasks:
                subtask.tables.notify_checkpoint_complete(self.checkpoint)
        elif ending == "abort":
            self.sweep()
            for subtask in self.subtasks:
                subtask.tables.notify_checkpoint_aborted(self.checkpoint)
        else:
            self.sweep()
            self.restart([subtask.groups for subtask in self.subtasks])

    @rule(seed=seeds, count=st.integers(2, 9))
    def run_batches(self, seed: int, count: int) -> None:
        """Batches that change some keys each, with a checkpoint after each of them."""
        random_ = random.Random(seed)
        for _ in range(count):
            some = random_.sample(range(KEY_COUNT), random_.choice([2, 5, 20]))
            self.put(some, random_.randrange(1000))
            self.append(some[::2], random_.randrange(1000), is_put=False)
            self.reduce(some[::2], random_.randrange(1000))
            self.put_map(some[::3], random_.randrange(1000), delete=random_.random() < 0.3)
            self.delete(some[::4], 0, random_.choice("vlr"))
            self.snapshot("complete")
        self.scan()

    def files(self) -> set[str]:
        return set(files_below(self.directory))

    def sweep(self) -> None:
        """Delete all files that the completed checkpoint doesn't refer to."""
        used = {
            stream.uri
            for handle, _ in self.completed
            for stream in handle.streams()
            if isinstance(stream, FileStateHandle)
        }
        file_system_for(self.directory).delete(sorted(self.files() - used))

    @precondition(lambda self: self.completed)
    @rule(parallelism=st.integers(1, 4), first=st.booleans())
    def rescale(self, parallelism: int, *, first: bool) -> None:
        if first:
            self.snapshot("complete")
        edges = [GROUPS * i // parallelism for i in range(parallelism + 1)]
        self.restart([KeyGroupRange(low, high - 1) for low, high in itertools.pairwise(edges)])

    def restart(self, ranges: Sequence[KeyGroupRange]) -> None:
        """Resume from the completed checkpoint."""
        whole = Model()
        for _, model in self.completed:
            whole.add(model)
        models = [copy.deepcopy(whole.part(groups)) for groups in ranges]
        self.open(ranges, [handle for handle, _ in self.completed], models)
        self.scan()

    # ---- all rows

    @rule()
    def scan(self) -> None:
        for subtask in self.subtasks:
            model = subtask.model

            def count(name: str, subtask: Subtask = subtask) -> int:
                steps: list[TableRows] = list(subtask.by_name[name].scan(step_rows=20))
                return sum(len(step) for step in steps)

            living = [row for row in model.v.values() if row[2] + TTL_MS > self.now]
            assert count("v") == len(living)
            assert count("l") == len(model.l)
            assert count("r") == len(model.r)
            assert count("m") == len(model.m)
            assert count("t") == len(model.t)

    @invariant()
    def no_local_file_is_left_over(self) -> None:
        if getattr(self, "local", None) is not None and self.local is not None:
            assert not [name for name in os.listdir(self.local) if "inprogress" in name]


TestColumnarMachine = ColumnarMachine.TestCase
# A step is worth many of a plain test.
TestColumnarMachine.settings = settings(
    stateful_step_count=30, deadline=None, max_examples=settings().max_examples // 2
)
