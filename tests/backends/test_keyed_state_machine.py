"""Any sequence of operations on keyed states of several subtasks, compared with dicts, while backends change."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from contracts.keyed.checkpoints import KeyedCheckpoints, parts_of
from contracts.keyed_model import (
    GROUPS,
    KEY_COUNT,
    KEYS,
    NUMBERS,
    ROWS,
    SUBS,
    TTL,
    TTL_MS,
    WINDOW,
    Model,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from jobs.quick_disk import QUICK_DISK

from holdfast.backends.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from holdfast.backends.keyed import KeyedStateBackend, Keys, readable_handles, write_canonical
from holdfast.backends.keyed.heap import HeapStateTables
from holdfast.backends.keyed.rocksdb_tables import RocksDBStateTables
from holdfast.backends.keyed.segments import ColumnarStateTables, MergePolicy
from holdfast.backends.keyed.table import StateTables
from holdfast.backends.keys import KeyGroupRange, key_group_range, key_hash, xxhash64
from holdfast.locations import StoredSubtask
from holdfast.locations.handles import SegmentsStateHandle


@dataclass
class Subtask:
    groups: KeyGroupRange
    backend: KeyedStateBackend
    states: dict[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    handles: tuple[SegmentsStateHandle, ...] = ()
    model: Model = field(default_factory=Model)
    version: int = 0


numbers = st.one_of(
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
    st.lists(st.integers(0, KEY_COUNT - 1), min_size=1, max_size=12),
    st.just(list(range(KEY_COUNT))),
)
seeds = st.integers(0, 1000)
kinds = st.lists(st.sampled_from(["heap", "columnar", "merging"]), min_size=1, max_size=4)


class KeyedStateMachine(RuleBasedStateMachine):
    """Subtasks of one operator; a checkpoint is of all of them."""

    @initialize(
        kind=st.sampled_from(sorted(KEYS)),
        weak=st.sampled_from([0, 1, 3, None]),
        inline=st.sampled_from([0, 3000, 1 << 20]),
        kinds=kinds,
    )
    def start(self, kind: str, weak: int | None, inline: int, kinds: list[str]) -> None:
        self.stack = ExitStack()
        patch = self.stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr("holdfast.backends.keyed.segments.segment_writer.MIN_ROWS", 1)
        patch.setattr("holdfast.backends.keyed.segments.merging.CHUNK_ROWS", 2)
        patch.setattr("holdfast.backends.keyed.segments.table_writer.STEP_ROWS", 7)
        patch.setattr("holdfast.backends.keyed.segments.table_writer.MERGED_ROWS", 5)
        self.key, self.key_of = KEYS[kind]
        columns = self.columns_of(range(KEY_COUNT))
        self.group_of = (key_hash(columns).to_numpy().astype(np.int64) % GROUPS).tolist()
        self.mask = np.uint64((1 << 64) - 1 if weak is None else (1 << 64) - (1 << 64 - weak))
        self.checkpoints = KeyedCheckpoints(inline)
        self.stack.callback(self.checkpoints.delete)
        self.checkpoint_id = 0
        self.now = 0
        self.version = 0
        self.completed = [Checkpoint()]
        self.subtasks: list[Subtask] = []
        self.open(Checkpoint(), kinds)

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.stack.close()

    def hash_of(self, columns: Sequence[pa.Array]) -> npt.NDArray[np.uint64]:
        return xxhash64(columns) & self.mask

    def tables_of(
        self,
        kind: str,
        groups: KeyGroupRange,
        handles: Sequence[SegmentsStateHandle],
        *,
        may_refer: bool = True,
    ) -> StateTables:
        if kind == "heap":
            return HeapStateTables(groups, handles)
        policy = MergePolicy()
        if kind == "merging":
            policy = MergePolicy(
                fan_in=2,
                level_bytes=100.0,
                tier_bytes=800.0,
                min_step_bytes=50.0,
                max_step_bytes=100.0,
                rewrite_factor=0.0,
            )
        return ColumnarStateTables(groups, handles, policy=policy, may_refer=may_refer)

    def open(self, checkpoint: Checkpoint, kinds: Sequence[str]) -> None:
        for subtask in self.subtasks:
            subtask.backend.close()
        self.model = copy.deepcopy(checkpoint.model)
        if checkpoint.version < self.version:
            for row in self.model.w.values():
                row["more"] = "default"
        self.subtasks = []
        for index, kind in enumerate(kinds):
            groups = key_group_range(GROUPS, len(kinds), index)
            tables = self.tables_of(kind, groups, parts_of(checkpoint.handles, groups))
            backend = KeyedStateBackend(tables, self.key, GROUPS, groups, hash_of=self.hash_of)
            backend.advance_time(self.now)
            self.subtasks.append(Subtask(groups, backend, {}))

    def state(self, subtask: Subtask, name: str) -> Any:
        """A state of a subtask, which is asked for when it is first needed."""
        if name not in subtask.states:
            backend, number = subtask.backend, NUMBERS[self.version]
            make: dict[str, Callable[[], Any]] = {
                "v": lambda: backend.get_state(ValueStateDescriptor("v", int, ttl=TTL)),
                "w": lambda: backend.get_state(
                    ValueStateDescriptor(
                        "w",
                        ROWS[self.version],
                        defaults={"more": "default"} if self.version else None,
                    )
                ),
                "l": lambda: backend.get_list_state(ListStateDescriptor("l", number)),
                "lt": lambda: backend.get_list_state(ListStateDescriptor("lt", int, ttl=TTL)),
                "m": lambda: backend.get_map_state(MapStateDescriptor("m", str, number)),
                "mt": lambda: backend.get_map_state(MapStateDescriptor("mt", str, int, ttl=TTL)),
                "r": lambda: backend.get_reducing_state(
                    ReducingStateDescriptor(
                        "r",
                        {"n": "count", "total": "sum"},
                        pa.schema([("n", pa.int64()), ("total", pa.int64())]),
                    )
                ),
                "rt": lambda: backend.get_reducing_state(
                    ReducingStateDescriptor("rt", "max", int, ttl=TTL)
                ),
                "a": lambda: backend.get_aggregating_state(AggregatingStateDescriptor("a", "avg")),
                "lw": lambda: backend.get_list_state(ListStateDescriptor("lw", int), WINDOW),
                "t": backend.event_time_timers,
            }
            subtask.states[name] = make[name]()
        return subtask.states[name]

    def columns_of(self, numbers: Sequence[int]) -> list[pa.Array]:
        rows = [self.key_of(number) for number in numbers]
        return [
            pa.array([row[index] for row in rows], field.type)
            for index, field in enumerate(self.key)
        ]

    def batches(self, numbers: Sequence[int]) -> Iterator[tuple[Subtask, list[int], Keys]]:
        """The part of a batch for each subtask: the rows, as numbers, and their keys."""
        for subtask in self.subtasks:
            mine = [number for number in numbers if self.group_of[number] in subtask.groups]
            if mine:
                yield subtask, mine, subtask.backend.keys(self.columns_of(mine))

    @staticmethod
    def one_by_one(subtask: Subtask, mine: list[int], keys: Keys) -> Iterator[int]:
        """Make the key of each row the current one."""
        subtask.backend.begin_batch(keys)
        for number, code in zip(mine, keys.codes.tolist(), strict=True):
            subtask.backend.set_current_key(code)
            yield number

    @staticmethod
    def distinct(mine: list[int], keys: Keys) -> list[int]:
        """The numbers of the keys."""
        numbers = [mine[row] for row in keys.rows.firsts.tolist()]
        assert sorted(numbers) == sorted(set(mine))
        return numbers

    @rule(numbers=numbers, seed=seeds, by_key=st.booleans())
    def put(self, numbers: list[int], seed: int, *, by_key: bool) -> None:
        for subtask, mine, keys in self.batches(numbers):
            v, w = self.state(subtask, "v"), self.state(subtask, "w")
            values = {n: None if (n + seed) % 7 == 0 else n * 100 + seed for n in mine}
            rows: dict[int, Any] = {
                n: {"n": seed} if not self.version else {"n": 1 << 40, "more": str(n)} for n in mine
            }
            if by_key:
                for number in self.one_by_one(subtask, mine, keys):
                    v.update(values[number])
                    w.update(rows[number])
            else:
                order = self.distinct(mine, keys)
                v.columns.put(keys, [values[n] for n in order])
                w.columns.put(keys, [rows[n] for n in order])
            for number in mine:
                value = values[number]
                self.model.w[number] = rows[number]
                if value is None:
                    self.model.v.pop(number, None)
                else:
                    self.model.v[number] = value, self.now

    @rule(numbers=numbers, seed=seeds, by_key=st.booleans())
    def append(self, numbers: list[int], seed: int, *, by_key: bool) -> None:
        for subtask, mine, keys in self.batches(numbers):
            states = [self.state(subtask, name) for name in ("l", "lt")]
            elements = [seed * 100 + row for row in range(len(mine))]
            if by_key:
                for row, _ in enumerate(self.one_by_one(subtask, mine, keys)):
                    for state in states:
                        state.add(elements[row])
            else:
                for state in states:
                    state.columns.append(keys, elements)
            for number, element in zip(mine, elements, strict=True):
                self.model.l.setdefault(number, []).append(element)
                self.model.lt.setdefault(number, []).append((element, self.now))

    @rule(numbers=numbers, seed=seeds, by_key=st.booleans())
    def set_lists(self, numbers: list[int], seed: int, *, by_key: bool) -> None:
        for subtask, mine, keys in self.batches(numbers):
            lists = {n: list(range(seed, seed + (n + seed) % 3)) for n in mine}
            for name in ("l", "lt"):
                state = self.state(subtask, name)
                if by_key:
                    for number in self.one_by_one(subtask, mine, keys):
                        state.update(lists[number])
                else:
                    state.columns.put(keys, [lists[n] for n in self.distinct(mine, keys)])
            for number in mine:
                self.model.l[number] = list(lists[number])
                self.model.lt[number] = [(element, self.now) for element in lists[number]]

    @rule(
        numbers=numbers,
        subs=st.lists(st.sampled_from(SUBS), min_size=KEY_COUNT, max_size=KEY_COUNT),
        seed=seeds,
        by_key=st.booleans(),
        removes=st.booleans(),
    )
    def change_entries(
        self, numbers: list[int], subs: list[str], seed: int, *, by_key: bool, removes: bool
    ) -> None:
        for subtask, mine, keys in self.batches(numbers):
            entries = subs[: len(mine)]
            values = [seed + row for row in range(len(mine))]
            for name in ("m", "mt"):
                state = self.state(subtask, name)
                if by_key:
                    for row, _ in enumerate(self.one_by_one(subtask, mine, keys)):
                        if removes:
                            state.remove(entries[row])
                        else:
                            state.put(entries[row], values[row])
                elif removes:
                    state.columns.remove(keys, entries)
                else:
                    state.columns.put(keys, entries, values)
            for number, entry, value in zip(mine, entries, values, strict=True):
                m, mt = self.model.m.setdefault(number, {}), self.model.mt.setdefault(number, {})
                if removes:
                    m.pop(entry, None)
                    mt.pop(entry, None)
                else:
                    m[entry] = value
                    mt[entry] = value, self.now

    @rule(numbers=numbers, seed=seeds, by_key=st.booleans())
    def add(self, numbers: list[int], seed: int, *, by_key: bool) -> None:
        for subtask, mine, keys in self.batches(numbers):
            r, rt, a = (self.state(subtask, name) for name in ("r", "rt", "a"))
            values = [(number * 7 + seed) % 50 for number in mine]
            if by_key:
                for row, _ in enumerate(self.one_by_one(subtask, mine, keys)):
                    r.add({"n": 0, "total": values[row]})
                    rt.add(values[row])
                    a.add(values[row])
            else:
                r.columns.add(keys, {"total": values})
                rt.columns.add(keys, values)
                a.columns.add(keys, values)
            for number, value in zip(mine, values, strict=True):
                count, total = self.model.r.get(number, (0, 0))
                self.model.r[number] = count + 1, total + value
                self.model.a.setdefault(number, []).append(value)
                known = self.living(self.model.rt.get(number))
                self.model.rt[number] = value if known is None else max(known, value), self.now

    @rule(
        numbers=numbers,
        names=st.sets(st.sampled_from(["v", "w", "l", "lt", "m", "mt", "r", "rt", "a"])),
        by_key=st.booleans(),
    )
    def clear(self, numbers: list[int], names: set[str], *, by_key: bool) -> None:
        for subtask, mine, keys in self.batches(numbers):
            for name in sorted(names):
                state = self.state(subtask, name)
                if by_key:
                    for _ in self.one_by_one(subtask, mine, keys):
                        state.clear()
                else:
                    state.columns.clear(keys)
                for number in mine:
                    getattr(self.model, name).pop(number, None)

    @rule(numbers=numbers, windows=st.lists(st.integers(0, 3), min_size=1, max_size=3), seed=seeds)
    def add_in_windows(self, numbers: list[int], windows: list[int], seed: int) -> None:
        for subtask, mine, keys in self.batches(numbers):
            state = self.state(subtask, "lw")
            for number in self.one_by_one(subtask, mine, keys):
                for window in windows:
                    subtask.backend.set_current_namespace(window)
                    state.add(seed)
                    self.model.lw.setdefault((number, window), []).append(seed)

    @rule(
        numbers=numbers,
        into=st.integers(0, 3),
        sources=st.lists(st.integers(0, 3), unique=True, max_size=3),
    )
    def merge(self, numbers: list[int], into: int, sources: list[int]) -> None:
        sources = [source for source in sources if source != into]
        for subtask, mine, keys in self.batches(numbers):
            state = self.state(subtask, "lw")
            for number in self.one_by_one(subtask, mine, keys):
                state.merge_namespaces((into,), [(source,) for source in sources])
                moved = [e for source in sources for e in self.model.lw.pop((number, source), [])]
                if moved:
                    self.model.lw.setdefault((number, into), []).extend(moved)

    @rule(
        numbers=numbers,
        times=st.lists(
            st.sampled_from([-5000, 0, 1, 500, 1023, 1024, 1025, 9000]),
            min_size=KEY_COUNT,
            max_size=KEY_COUNT,
        ),
        by_key=st.booleans(),
        deletes=st.booleans(),
    )
    def timers(self, numbers: list[int], times: list[int], *, by_key: bool, deletes: bool) -> None:
        for subtask, mine, keys in self.batches(numbers):
            timers = self.state(subtask, "t")
            chosen = times[: len(mine)]
            if by_key:
                for row, _ in enumerate(self.one_by_one(subtask, mine, keys)):
                    (timers.delete if deletes else timers.register)(chosen[row])
                subtask.backend.end_batch()
            else:
                (timers.columns.delete if deletes else timers.columns.register)(keys, chosen)
            for timer in zip(mine, chosen, strict=True):
                (self.model.t.discard if deletes else self.model.t.add)(timer)

    @rule(numbers=numbers)
    def timers_of_keys(self, numbers: list[int]) -> None:
        for subtask, mine, keys in self.batches(numbers):
            indices, times_ms = self.state(subtask, "t").columns.get(keys)
            expected = sorted(time for n, time in self.model.t if n in mine)
            assert sorted(times_ms.tolist()) == expected
            assert not len(indices) or 0 <= indices.min() <= indices.max() < len(keys)

    @rule(until=st.sampled_from([-5000, -1, 0, 501, 1023, 1024, 1025, 9001]))
    def fire(self, until: int) -> None:
        seen = []
        for subtask in self.subtasks:
            fired = self.state(subtask, "t").fire(until)
            times = fired.times_ms.tolist()
            assert times == sorted(times)
            seen += times
            assert len(fired.key[0]) == len(times)
        due = {timer for timer in self.model.t if timer[1] <= until}
        assert sorted(seen) == sorted(time for _, time in due)
        self.model.t -= due

    @invariant()
    def earliest_timers_match(self) -> None:
        for subtask in getattr(self, "subtasks", []):
            mine = [time for n, time in self.model.t if self.group_of[n] in subtask.groups]
            assert subtask.backend.next_timers() == (min(mine, default=None), None)

    @rule(by=st.integers(1, 12))
    def wait(self, by: int) -> None:
        self.now += by
        for subtask in self.subtasks:
            subtask.backend.advance_time(self.now)

    @rule(
        ends=st.sampled_from(["completes", "completes", "is not confirmed", "cancelled", "aborted"])
    )
    def snapshot(self, ends: str) -> None:
        self.checkpoint_id += 1
        location = self.checkpoints.location(self.checkpoint_id)
        parts = [
            subtask.backend.snapshot(self.checkpoint_id, location) for subtask in self.subtasks
        ]
        model = copy.deepcopy(self.model)
        self.append([0, 1, 2, 3], 999, by_key=False)
        self.put([0, 1, 2, 3], 5, by_key=True)
        if ends == "cancelled":
            for part in parts:
                part.cancel()
        elif ends == "aborted":
            for part in parts:
                self.checkpoints.discard_new(part.run().state)
        else:
            handles = tuple(handle for part in parts for handle in self.checkpoints.run(part))
            self.completed.append(Checkpoint(handles, model, self.version))
        for subtask in self.subtasks:
            if ends == "completes":
                subtask.backend.notify_checkpoint_complete(self.checkpoint_id)
            elif ends in {"cancelled", "aborted"}:
                subtask.backend.notify_checkpoint_aborted(self.checkpoint_id)

    @precondition(lambda self: hasattr(self, "completed"))
    @rule(
        kinds=kinds,
        back=st.sampled_from([0, 0, 0, 0, 1, 2]),
        upgrade=st.booleans(),
        canonical=st.booleans(),
    )
    def restart(self, kinds: list[str], back: int, *, upgrade: bool, canonical: bool) -> None:
        """Resume from a completed checkpoint, at any parallelism, on any backends; later changes are lost.

        Or from a canonical savepoint of it.
        """
        if not back:
            self.snapshot("completes")
            back = 1
        del self.completed[max(1, len(self.completed) - back + 1) :]
        checkpoint = self.completed[-1]
        self.version = max(checkpoint.version, int(upgrade))
        if canonical:
            self.checkpoint_id += 1
            location = self.checkpoints.location(self.checkpoint_id)
            written = tuple(
                write_canonical(handle, location, now_ms=self.now) for handle in checkpoint.handles
            )
            handles = self.checkpoints.complete(StoredSubtask(managed_keyed=written))
            checkpoint = replace(checkpoint, handles=handles)
        self.open(checkpoint, kinds)
        self.read_by_arrays(list(range(KEY_COUNT)))

    def living(self, value: tuple[Any, int] | None) -> Any:
        """The value, or None if it has expired."""
        return None if value is None or value[1] + TTL_MS <= self.now else value[0]

    def expected_values(self, number: int) -> dict[str, Any]:
        """The expected values of all states of a key."""
        model = self.model
        mean = model.a.get(number)
        count, total = model.r.get(number, (None, None))
        entries = {sub: self.living(entry) for sub, entry in model.mt.get(number, {}).items()}
        elements = [self.living(element) for element in model.lt.get(number, [])]
        return {
            "v": self.living(model.v.get(number)),
            "w": model.w.get(number),
            "l": model.l.get(number) or [],
            "lt": [element for element in elements if element is not None],
            "m": model.m.get(number, {}),
            "mt": {sub: value for sub, value in entries.items() if value is not None},
            "r": None if count is None else {"n": count, "total": total},
            "rt": self.living(model.rt.get(number)),
            "a": None if mean is None else pytest.approx(sum(mean) / len(mean)),
        }

    @rule(numbers=numbers)
    def read_one_by_one(self, numbers: list[int]) -> None:
        for subtask, mine, keys in self.batches(numbers):
            states = {name: self.state(subtask, name) for name in self.expected_values(0)}
            windows = self.state(subtask, "lw")
            for number in self.one_by_one(subtask, mine, keys):
                values = {
                    name: state.value()
                    if name in {"v", "w"}
                    else state.items()
                    if name in {"m", "mt"}
                    else state.get()
                    for name, state in states.items()
                }
                assert values == self.expected_values(number)
                for window in range(4):
                    subtask.backend.set_current_namespace(window)
                    assert windows.get() == self.model.lw.get((number, window), [])

    @rule(numbers=numbers)
    def read_by_arrays(self, numbers: list[int]) -> None:
        for subtask, mine, keys in self.batches(numbers):
            columns: dict[str, list[Any]] = {}
            for name in self.expected_values(0):
                state = self.state(subtask, name).columns
                if name not in {"m", "mt"}:
                    columns[name] = state.get(keys).to_pylist()
                    continue
                entries = state.items(keys)
                maps: list[dict[str, Any]] = [{} for _ in range(len(keys))]
                for index, sub, value in zip(
                    entries.indices.tolist(),
                    entries.map_keys.to_pylist(),
                    entries.values.to_pylist(),
                    strict=True,
                ):
                    assert sub not in maps[index]
                    maps[index][sub] = value
                columns[name] = maps
                for sub in SUBS:
                    wanted = np.arange(len(keys))
                    values = state.get(keys, [sub] * len(keys), wanted).to_pylist()
                    assert values == [entries.get(sub) for entries in maps]
            for index, number in enumerate(self.distinct(mine, keys)):
                stored = {name: rows[index] for name, rows in columns.items()}
                for name in ("l", "lt"):
                    stored[name] = stored[name] or []
                assert stored == self.expected_values(number)

    @invariant()
    def every_row_is_there_once(self) -> None:
        if not hasattr(self, "completed"):
            return
        for name in ("v", "m", "t"):
            rows = 0
            for subtask in self.subtasks:
                if name in subtask.states:
                    table = subtask.states[name].columns.rows.table
                    subtask.backend.end_batch()
                    rows += sum(len(chunk) for chunk in table.scan(3))
                else:
                    return
            model = getattr(self.model, name)
            if name == "v":
                assert rows == sum(self.living(value) is not None for value in model.values())
            elif name == "m":
                assert rows == sum(map(len, model.values()))
            else:
                assert rows == len(model)


TestKeyedStateMachine = KeyedStateMachine.TestCase
# A step is worth many of a plain test.
TestKeyedStateMachine.settings = settings(deadline=None, max_examples=settings().max_examples // 2)


class RocksDBStateMachine(KeyedStateMachine):
    """The same with RocksDB in the place of the heap backend."""

    def tables_of(
        self,
        kind: str,
        groups: KeyGroupRange,
        handles: Sequence[SegmentsStateHandle],
        *,
        may_refer: bool = True,
    ) -> StateTables:
        if kind == "heap":
            return RocksDBStateTables(groups, handles, directory=QUICK_DISK, may_refer=may_refer)
        readable = readable_handles(handles)
        # Converted files are not part of any checkpoint.
        return super().tables_of(kind, groups, readable, may_refer=readable == list(handles))


TestRocksDBStateMachine = RocksDBStateMachine.TestCase
TestRocksDBStateMachine.settings = settings(  # opening a database takes 10 ms
    deadline=None, max_examples=max(1, settings().max_examples // 3), stateful_step_count=20
)
