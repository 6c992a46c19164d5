"""Keyed state in the canonical form, written and read by every backend."""

import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from contracts.columnar_tables import NO_MERGES
from contracts.keyed.checkpoints import KeyedCheckpoints, parts_of
from jobs.quick_disk import QUICK_DISK

from holdfast.backends.keyed import (
    BACKEND_NAMES,
    BackendName,
    ColumnarStateTables,
    Keys,
    Operation,
    StateTable,
    StateTables,
    TableSpec,
    open_tables,
    read_manifest,
    time_part,
    write_canonical,
)
from holdfast.backends.keyed.table import Identities
from holdfast.backends.keys import KeyGroupRange
from holdfast.common import map_in_parallel
from holdfast.errors import CheckpointCorruptedError, StateMigrationError
from holdfast.locations import StoredSubtask
from holdfast.locations.adapters import file_system_for
from holdfast.locations.handles import FileStateHandle, SegmentsStateHandle

GROUPS = 8
ALL = KeyGroupRange(0, GROUPS - 1)
KEY = pa.schema([("k", pa.int64())])
NUMBER = TableSpec("number", "value", KEY, pa.schema([("value", pa.int64())]))
BRIEF = TableSpec("brief", "value", KEY, pa.schema([("value", pa.string())]), ttl_ms=100)
LISTS = TableSpec(
    "lists", "list", KEY, pa.schema([("value", pa.list_(pa.int64()))]), folds=("concatenate",)
)
PAGES = TableSpec("pages", "map", KEY, NUMBER.values, sub_key=pa.schema([("page", pa.string())]))
DUE = TableSpec("due", "timers", KEY, pa.schema([]), sub_key=pa.schema([("time", pa.int64())]))
NARROW = replace(NUMBER, values=pa.schema([("value", pa.int32())]))
NOW_MS = 1_120


def open_backend(
    backend: BackendName, *handles: SegmentsStateHandle, groups: KeyGroupRange = ALL
) -> StateTables:
    if backend == "columnar":  # without merges
        return ColumnarStateTables(groups, handles, policy=NO_MERGES)
    return open_tables(groups, handles, backend=backend, directory=QUICK_DISK)


def snapshot(
    tables: StateTables, checkpoints: KeyedCheckpoints, checkpoint_id: int
) -> SegmentsStateHandle:
    part = tables.snapshot(checkpoint_id, checkpoints.location(checkpoint_id))
    (handle,) = checkpoints.run(part)
    tables.notify_checkpoint_complete(checkpoint_id)
    return handle


def canonical(
    handle: SegmentsStateHandle, checkpoints: KeyedCheckpoints, now_ms: int = NOW_MS
) -> SegmentsStateHandle:
    written = write_canonical(handle, checkpoints.location(99), now_ms=now_ms)
    (completed,) = checkpoints.complete(StoredSubtask(managed_keyed=(written,)))
    return completed


def keys_of(numbers: range) -> Keys:
    return Keys.of([pa.array(numbers, pa.int64())], GROUPS)


def put(table: StateTable, numbers: range, value: object) -> None:
    keys = keys_of(numbers)
    table.write(keys.identities, [pa.array([value] * len(keys), table.spec.values.types[0])])


def delete(table: StateTable, numbers: range) -> None:
    keys = keys_of(numbers)
    nulls = [pa.nulls(len(keys), type) for type in table.spec.values.types]
    table.write(keys.identities, nulls, Operation.DELETE)


def register(table: StateTable, numbers: range, time_ms: int) -> None:
    keys = keys_of(numbers)
    groups = keys.identities.sort_keys >> np.uint64(48) << np.uint64(48)
    part = np.uint64(int(time_part(np.array([time_ms]))[0]))
    times = pa.array([time_ms] * len(keys), pa.int64())
    columns = (*keys.identities.columns, times)
    table.write(Identities(groups | part, columns), ())


def content(tables: StateTables) -> dict[str, dict[tuple[object, ...], object]]:
    """The first column of values of all rows, by their ids."""
    tables.advance_time(NOW_MS)
    rows: dict[str, dict[tuple[object, ...], object]] = {}
    for name, spec in tables.specs().items():
        pairs = rows[name] = {}
        for step in tables.table(spec).scan():
            ids = zip(*(column.to_pylist() for column in step.identities.columns), strict=True)
            values = step.values[0].to_pylist() if step.values else [None] * len(step)
            pairs.update(zip(ids, values, strict=True))
    tables.close()
    return rows


def changed_again_and_again(
    backend: BackendName, checkpoints: KeyedCheckpoints
) -> SegmentsStateHandle:
    """A checkpoint of states whose rows were changed, deleted, appended to, fired, and grew old."""
    tables = open_backend(backend)
    states = {spec.name: tables.table(spec) for spec in (NUMBER, BRIEF, LISTS, DUE)}
    pages = tables.table(PAGES)
    handle = None
    for batch in range(4):
        tables.advance_time(1_000 + 10 * batch)
        put(states["number"], range(100), batch)
        put(states["brief"], range(20 * batch, 100), f"of batch {batch}")
        keys = keys_of(range(50))
        element = pa.array([[batch]] * len(keys), LISTS.values.types[0])
        states["lists"].write(keys.identities, [element], Operation.APPEND)
        sub = pa.array([f"/{batch % 2}"] * len(keys))
        entries = keys.with_columns(keys.codes, [sub])
        pages.write(entries.identities, [pa.array([batch] * len(keys))])
        register(states["due"], range(30), 10_000 * batch)
        if batch == 2:
            delete(states["number"], range(90, 100))
        if batch == 3:
            delete(states["number"], range(10))
            states["due"].delete_up_to(10_000)
        handle = snapshot(tables, checkpoints, batch + 1)
    tables.close()
    assert handle is not None
    return handle


EXPECTED: dict[str, dict[tuple[object, ...], object]] = {
    "number": {(key,): 3 for key in range(10, 100)},
    "brief": {(key,): f"of batch {batch}" for batch in (3,) for key in range(60, 100)},
    "lists": {(key,): [0, 1, 2, 3] for key in range(50)},
    "pages": {(key, f"/{page}"): 2 + page for key in range(50) for page in range(2)},
    "due": {(key, time): None for key in range(30) for time in (20_000, 30_000)},
}


@pytest.mark.parametrize("backend", BACKEND_NAMES)
class TestEveryBackend:
    def test_each_state_is_one_run_of_merged_rows(
        self, checkpoints: KeyedCheckpoints, backend: BackendName
    ) -> None:
        """The values of batches 0 to 2 have expired: 1,020 + 100 <= 1,120."""
        handle = canonical(changed_again_and_again(backend, checkpoints), checkpoints)
        manifest = read_manifest([handle], ALL)
        assert len(handle.segments) == 1
        assert {name: len(table.runs) for name, table in manifest.tables.items()} == dict.fromkeys(
            EXPECTED, 1
        )
        rows = {name: table.runs[0].rows for name, table in manifest.tables.items()}
        assert rows == {name: len(of_state) for name, of_state in EXPECTED.items()}

    def test_every_backend_reads_the_same_rows_at_any_parallelism(
        self, checkpoints: KeyedCheckpoints, backend: BackendName
    ) -> None:
        handle = canonical(changed_again_and_again(backend, checkpoints), checkpoints)
        for reader in BACKEND_NAMES:
            assert content(open_backend(reader, handle)) == EXPECTED
            halves = [
                content(open_backend(reader, *parts_of([handle], groups), groups=groups))
                for groups in (KeyGroupRange(0, 2), KeyGroupRange(3, 7))
            ]
            for name, expected in EXPECTED.items():
                assert halves[0][name] | halves[1][name] == expected
                assert halves[0][name].keys().isdisjoint(halves[1][name])

    def test_rows_of_other_key_groups_are_excluded(
        self, checkpoints: KeyedCheckpoints, backend: BackendName
    ) -> None:
        groups = KeyGroupRange(2, 4)
        (part,) = parts_of([changed_again_and_again(backend, checkpoints)], groups)
        handle = canonical(part, checkpoints)
        rows = content(open_backend("heap", handle, groups=groups))["number"]
        assert 0 < len(rows) < len(EXPECTED["number"])
        (table,) = (t for n, t in read_manifest([handle], ALL).tables.items() if n == "number")
        assert table.runs[0].rows == len(rows)

    def test_corrupt_file_raises_its_name(
        self, checkpoints: KeyedCheckpoints, backend: BackendName
    ) -> None:
        handle = changed_again_and_again(backend, checkpoints)
        file = next(s for s in handle.segments.values() if isinstance(s, FileStateHandle))
        file_system = file_system_for(file.uri)
        with file_system.open(file.uri) as stream:
            damaged = bytearray(stream.read())
        damaged[len(damaged) // 3] ^= 1
        file_system.delete([file.uri])
        written = file_system.create(file.uri)
        written.write(bytes(damaged))
        written.commit()
        with pytest.raises(CheckpointCorruptedError) as error:
            canonical(handle, checkpoints)
        assert error.value.location == file.uri

    def test_state_without_rows_is_written(
        self, checkpoints: KeyedCheckpoints, backend: BackendName
    ) -> None:
        tables = open_backend(backend)
        tables.advance_time(1_000)
        put(tables.table(BRIEF), range(5), "old")
        handle = canonical(snapshot(tables, checkpoints, 1), checkpoints, now_ms=2_000)
        tables.close()
        assert not handle.segments
        assert content(open_backend(backend, handle)) == {"brief": {}}


def widen(stored: TableSpec, values: Sequence[pa.Array]) -> tuple[pa.Array, ...]:
    """Migrate as only the job can, which knows the factor."""
    assert stored.values == NARROW.values
    return (pa.array([10 * value for value in values[0].to_pylist()], pa.int64()),)


def half_migrated(checkpoints: KeyedCheckpoints) -> SegmentsStateHandle:
    """Some keys have rows in the old form, some in the new one, and some in both."""
    tables = open_backend("columnar")
    tables.advance_time(1_000)
    put(tables.table(NARROW), range(100), 1)
    before = snapshot(tables, checkpoints, 1)
    tables.close()
    tables = open_backend("columnar", before)
    tables.advance_time(1_000)
    table = tables.table(NUMBER, widen)
    put(table, range(50, 150), 2)
    delete(table, range(90, 100))
    handle = snapshot(tables, checkpoints, 2)
    tables.close()
    return handle


class TestStateAfterTypeChange:
    @pytest.mark.parametrize("reader", BACKEND_NAMES)
    def test_old_rows_keep_their_form_for_the_job_to_migrate(
        self, checkpoints: KeyedCheckpoints, reader: BackendName
    ) -> None:
        handle = canonical(half_migrated(checkpoints), checkpoints)
        tables = open_backend(reader, handle)
        tables.table(NUMBER, widen)
        assert content(tables)["number"] == {
            (key,): 10 if key < 50 else 2 for key in (*range(90), *range(100, 150))
        }

    def test_each_form_has_its_own_run(self, checkpoints: KeyedCheckpoints) -> None:
        handle = canonical(half_migrated(checkpoints), checkpoints)
        table = read_manifest([handle], ALL).tables["number"]
        assert [spec.spec() for spec in table.specs] == [NARROW, NUMBER]
        assert [{piece.spec for piece in run.slices} for run in table.runs] == [{1}, {0}]
        with pytest.raises(StateMigrationError):
            open_backend("columnar", handle).table(NUMBER)

    def test_changed_ttl_results_in_one_run(self, checkpoints: KeyedCheckpoints) -> None:
        """Rows of before live as long as those of now."""
        tables = open_backend("columnar")
        tables.advance_time(1_000)
        put(tables.table(BRIEF), range(100), "old")
        before = snapshot(tables, checkpoints, 1)
        tables.close()
        tables = open_backend("columnar", before)
        longer = replace(BRIEF, ttl_ms=1_000)
        tables.advance_time(1_050)
        put(tables.table(longer), range(10), "new")
        handle = canonical(snapshot(tables, checkpoints, 2), checkpoints)
        tables.close()
        table = read_manifest([handle], ALL).tables["brief"]
        assert (len(table.runs), [spec.spec() for spec in table.specs]) == (1, [longer])
        assert content(open_backend("heap", handle))["brief"] == {
            (key,): "new" if key < 10 else "old" for key in range(100)
        }

    def test_old_rows_live_as_long_as_new_ones(self, checkpoints: KeyedCheckpoints) -> None:
        tables = open_backend("columnar")
        tables.advance_time(1_000)
        put(tables.table(replace(NARROW, ttl_ms=100)), range(100), 1)
        before = snapshot(tables, checkpoints, 1)
        tables.close()
        tables = open_backend("columnar", before)
        longer = replace(NUMBER, ttl_ms=1_000)
        tables.advance_time(1_050)
        put(tables.table(longer, widen), range(10), 2)
        handle = canonical(snapshot(tables, checkpoints, 2), checkpoints)
        tables.close()
        tables = open_backend("heap", handle)
        tables.table(longer, widen)
        assert content(tables)["number"] == {(key,): 2 if key < 10 else 10 for key in range(100)}


class TestStepsInMemory:
    @pytest.fixture(autouse=True)
    def _small_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("holdfast.backends.keyed.segments.table_writer.MERGED_ROWS", 500)

    def test_evenly_distributed_rows_make_equal_steps(self, checkpoints: KeyedCheckpoints) -> None:
        tables = open_backend("columnar")
        put(tables.table(NUMBER), range(10_000), 1)
        before = snapshot(tables, checkpoints, 1)
        tables.close()
        assert self.sections(before) == [10_000]
        sections = self.sections(canonical(before, checkpoints))
        assert sum(sections) == 10_000
        assert max(sections) <= 1_000

    def test_rows_of_a_single_key_make_steps_too(self, checkpoints: KeyedCheckpoints) -> None:
        tables = open_backend("columnar")
        keys = Keys.of([pa.array([7] * 10_000, pa.int64())], GROUPS)
        pages = [pa.array([f"/{number}" for number in range(10_000)])]
        entries = keys.with_columns(keys.codes, pages)
        tables.table(PAGES).write(entries.identities, [pa.array(range(10_000))])
        before = snapshot(tables, checkpoints, 1)
        tables.close()
        after = canonical(before, checkpoints)
        assert sum(self.sections(after, "pages")) == 10_000
        assert max(self.sections(after, "pages")) <= 1_000
        assert content(open_backend("heap", after)) == content(open_backend("heap", before))

    @staticmethod
    def sections(handle: SegmentsStateHandle, name: str = "number") -> list[int]:
        return [slice_.rows for slice_ in read_manifest([handle], ALL).tables[name].slices()]


def test_write_is_cancelled_if_a_concurrent_task_fails(checkpoints: KeyedCheckpoints) -> None:
    handle = changed_again_and_again("columnar", checkpoints)
    started, done = threading.Event(), 0

    def write(number: int) -> None:
        nonlocal done
        if not number:
            started.wait()
            message = "as planned"
            raise ValueError(message)
        for _ in range(100):
            canonical(handle, checkpoints)
            done += 1
            started.set()

    with pytest.raises(ValueError, match="as planned"):
        map_in_parallel(write, [1, 0], max_threads=2)
    assert 0 < done < 100
