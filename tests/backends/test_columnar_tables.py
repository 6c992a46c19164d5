"""Columnar tables: what a checkpoint writes and refers to, local copies, and what may go wrong."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from contracts.placeholders import resolved

from holdfast.backends.keyed.columnar import (
    ColumnarStateTables,
    MergePolicy,
    Workspace,
)
from holdfast.backends.keyed.columnar.chunked_merging import merged_by_chunks
from holdfast.backends.keyed.segments import Part, SortedRows, read_manifest, read_tables
from holdfast.backends.keyed.table import Fold, Identities, Operation, StateTable, TableSpec
from holdfast.backends.keyed.timer_order import time_part
from holdfast.backends.keys import KeyGroupRange
from holdfast.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    InvalidRequestError,
    StateMigrationError,
    StorageFullError,
)
from holdfast.locations import FileSystemCheckpointStorage
from holdfast.locations.adapters import FileStateHandle, StreamStateHandle
from holdfast.locations.file_systems import file_system_for
from holdfast.locations.handles import SegmentsStateHandle
from holdfast.testing import Faults

GROUPS = KeyGroupRange(0, 7)
KEY = pa.schema([("k", pa.int64())])
ROWS = 10_000
LONG = pa.int64()

NO_MERGES = MergePolicy(rewrite=0, fan_in=100, level_bytes=1e12)


def value_spec(type: pa.DataType = LONG, name: str = "s") -> TableSpec:
    return TableSpec(name, "value", KEY, pa.schema([("value", type)]))


def sum_spec(type: pa.DataType = LONG, fold: Fold = "sum") -> TableSpec:
    return TableSpec("s", "reducing", KEY, pa.schema([("value", type)]), folds=(fold,))


def identities(keys: range) -> Identities:
    """Keys that lie by number."""
    numbers = np.arange(keys.start, keys.stop, keys.step)
    sort_keys = numbers.astype(np.uint64) * np.uint64((8 << 48) // ROWS)
    return Identities(sort_keys, (pa.array(numbers),))


def put(table: StateTable, keys: range, value: object = 0) -> None:
    table.write(identities(keys), [pa.array([value] * len(keys), table.spec.values.types[0])])


def values(table: StateTable, keys: range) -> list[object]:
    _, (column,) = table.get(identities(keys))
    return list(column.to_pylist())


class Job:
    """A subtask's tables, and checkpoints of them."""

    def __init__(self, directory: str, local: Path) -> None:
        storage = FileSystemCheckpointStorage(directory, inline_threshold=0)
        self.access = storage.create_checkpoint_storage("job")
        self.access.initialize_base_locations_for_checkpoint()
        self.local = local
        self.checkpoint = 0
        self.written: dict[int, SegmentsStateHandle] = {}
        self.confirmed: dict[str, StreamStateHandle] = {}
        self.workspace = Workspace()

    def restored(
        self,
        *handles: SegmentsStateHandle,
        policy: MergePolicy = NO_MERGES,
        may_refer: bool = True,
        is_local: bool = True,
    ) -> ColumnarStateTables:
        tables = ColumnarStateTables(
            GROUPS,
            handles,
            directory=str(self.local) if is_local else None,
            policy=policy,
            workspace=self.workspace,
            may_refer=may_refer,
        )
        tables.advance_time(0)
        self.confirmed |= {name: s for handle in handles for name, s in handle.segments.items()}
        return tables

    def snapshot(self, tables: ColumnarStateTables) -> SegmentsStateHandle:
        self.checkpoint += 1
        location = self.access.initialize_location_for_checkpoint(self.checkpoint)
        (handle,) = tables.snapshot(self.checkpoint, location).run().managed_keyed
        assert isinstance(handle, SegmentsStateHandle)
        self.written[self.checkpoint] = resolved(handle, self.confirmed)
        return self.written[self.checkpoint]

    def completed(self, tables: ColumnarStateTables) -> SegmentsStateHandle:
        handle = self.snapshot(tables)
        self.confirm(tables, self.checkpoint)
        return handle

    def confirm(self, tables: ColumnarStateTables, checkpoint: int) -> None:
        tables.notify_checkpoint_complete(checkpoint)
        self.confirmed |= self.written[checkpoint].segments

    def local_files(self) -> set[str]:
        return set(os.listdir(self.local))

    def on_another_worker(self) -> None:
        """Forget what this worker has in memory, and on its disk."""
        self.workspace = Workspace()
        for name in self.local_files():
            os.unlink(self.local / name)


@pytest.fixture
def job(memory_directory: str, tmp_path: Path) -> Job:
    return Job(memory_directory, tmp_path)


def uris(handle: SegmentsStateHandle) -> dict[str, str]:
    streams = handle.segments.items()
    return {name: stream.uri for name, stream in streams if isinstance(stream, FileStateHandle)}


# ---- what a checkpoint writes


def test_a_checkpoint_writes_what_changed_since_the_last_confirmed_and_refers_to_the_rest(
    job: Job,
) -> None:
    tables = job.restored()
    table = tables.table(value_spec())
    put(table, range(ROWS), 1)
    first = uris(job.completed(tables))
    put(table, range(0, ROWS, 100), 2)
    second = uris(job.completed(tables))
    assert first.items() < second.items()
    assert len(second) == 2


def test_a_checkpoint_without_changes_writes_no_segment(job: Job) -> None:
    tables = job.restored()
    put(tables.table(value_spec()), range(ROWS))
    assert uris(job.completed(tables)) == uris(job.completed(tables))


def test_what_an_aborted_checkpoint_wrote_is_written_again_and_no_row_is_lost(job: Job) -> None:
    tables = job.restored()
    table = tables.table(value_spec())
    put(table, range(ROWS), 1)
    aborted = job.snapshot(tables)
    aborted.discard_state()
    tables.notify_checkpoint_aborted(job.checkpoint)
    assert set(values(table, range(ROWS))) == {1}
    completed = job.completed(tables)
    assert not set(uris(aborted).values()) & set(uris(completed).values())
    assert set(values(job.restored(completed).table(value_spec()), range(ROWS))) == {1}


def test_what_no_checkpoint_has_confirmed_is_written_by_each(job: Job) -> None:
    tables = job.restored()
    put(tables.table(value_spec()), range(ROWS))
    first, second = uris(job.snapshot(tables)), uris(job.snapshot(tables))
    assert first.keys() == second.keys()
    assert not set(first.values()) & set(second.values())
    job.confirm(tables, 1)
    assert uris(job.snapshot(tables)) == first


def test_a_late_word_of_an_older_checkpoint_changes_nothing(job: Job) -> None:
    tables = job.restored()
    put(tables.table(value_spec()), range(ROWS))
    job.snapshot(tables)
    second = uris(job.snapshot(tables))
    job.confirm(tables, 2)
    tables.notify_checkpoint_complete(1)
    assert uris(job.snapshot(tables)) == second


def test_a_cancelled_checkpoint_leaves_no_file_and_all_rows(job: Job) -> None:
    tables = job.restored()
    table = tables.table(value_spec())
    put(table, range(ROWS), 3)
    tables.snapshot(7, job.access.initialize_location_for_checkpoint(7)).cancel()
    assert set(values(table, range(ROWS))) == {3}


def test_a_checkpoint_refers_to_what_was_restored_unless_that_belongs_to_others(job: Job) -> None:
    tables = job.restored()
    put(tables.table(value_spec()), range(ROWS), 1)
    handle = job.completed(tables)
    assert uris(job.snapshot(job.restored(handle))) == uris(handle)
    own = uris(job.snapshot(job.restored(handle, may_refer=False)))
    assert own.keys() == uris(handle).keys()
    assert not set(own.values()) & set(uris(handle).values())


def test_a_state_that_nobody_asked_for_is_in_the_next_checkpoint(job: Job) -> None:
    tables = job.restored()
    put(tables.table(value_spec(name="a")), range(10), 1)
    put(tables.table(value_spec(name="b")), range(10), 2)
    restored = job.restored(job.completed(tables))
    assert restored.specs().keys() == {"a", "b"}
    put(restored.table(value_spec(name="a")), range(5), 3)
    again = job.restored(job.completed(restored))
    assert values(again.table(value_spec(name="b")), range(10)) == [2] * 10
    assert values(again.table(value_spec(name="a")), range(10)) == [3] * 5 + [1] * 5


def test_tables_without_a_state_make_no_handle(job: Job) -> None:
    part = job.restored().snapshot(1, job.access.initialize_location_for_checkpoint(1))
    assert not part.run().managed_keyed


# ---- local copies


def test_restoring_opens_no_segment_before_it_is_needed(job: Job) -> None:
    tables = job.restored()
    put(tables.table(value_spec()), range(ROWS))
    handle = job.completed(tables)
    job.on_another_worker()
    for stream in handle.segments.values():
        stream.discard_state()
    table = job.restored(handle).table(value_spec())
    with pytest.raises(CheckpointNotFoundError):
        values(table, range(1))


def test_a_segment_is_fetched_once_and_then_read_from_the_local_copy(job: Job) -> None:
    tables = job.restored()
    put(tables.table(value_spec()), range(ROWS), 5)
    handle = job.completed(tables)
    job.on_another_worker()
    assert values(job.restored(handle).table(value_spec()), range(3)) == [5] * 3
    assert job.local_files() == handle.segments.keys()
    for stream in handle.segments.values():
        stream.discard_state()
    job.workspace = Workspace()
    assert values(job.restored(handle).table(value_spec()), range(3)) == [5] * 3


def test_local_copies_stay_until_no_confirmed_checkpoint_needs_them(job: Job) -> None:
    tables = job.restored(policy=MergePolicy())
    table = tables.table(value_spec())
    put(table, range(ROWS), 1)
    first = job.completed(tables)
    assert job.local_files() == first.segments.keys()
    put(table, range(ROWS), 2)  # all is merged
    second = job.snapshot(tables)
    assert not first.segments.keys() & second.segments.keys()
    assert job.local_files() == first.segments.keys() | second.segments.keys()
    tables.notify_checkpoint_complete(job.checkpoint)
    assert job.local_files() == second.segments.keys()


def cut(content: bytes) -> bytes:
    return content[:5000]


def changed_in_the_middle(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def changed_at_the_end(content: bytes) -> bytes:
    return content[:-30] + bytes(30)


def emptied(_: bytes) -> bytes:
    return b""


CUT_OFF_DURING_A_READ = """
import os, sys
from holdfast.backends.keyed.segments import Segment

keys = Segment.open(sys.argv[1], "s").section(0).sort_keys
os.truncate(sys.argv[1], 0)
keys.sum()
"""

DAMAGES = [cut, changed_in_the_middle, changed_at_the_end, emptied]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("is_open", [True, False])
def test_a_damaged_local_copy_is_fetched_again_with_a_warning(
    job: Job, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes], *, is_open: bool
) -> None:
    tables = job.restored()
    put(tables.table(value_spec()), range(ROWS), 5)
    handle = job.completed(tables)
    (name,) = handle.segments
    written = (job.local / name).read_bytes()
    if not is_open:
        job.workspace = Workspace()
    (job.local / name).write_bytes(damage(written))
    os.utime(job.local / name, ns=(0, 0))  # it may be written twice between two ticks of the clock
    assert set(values(job.restored(handle).table(value_spec()), range(ROWS))) == {5}
    (warning,) = caplog.messages
    assert f"the local copy of segment {name} is damaged" in warning
    assert (job.local / name).read_bytes() == written


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_local_copy_that_is_cut_off_between_two_look_ups_of_a_batch_is_fetched_again(
    job: Job, caplog: pytest.LogCaptureFixture, *, is_deleted: bool
) -> None:
    tables = job.restored()
    put(tables.table(value_spec()), range(ROWS), 5)
    handle = job.completed(tables)
    (name,) = handle.segments
    table = job.restored(handle).table(value_spec())
    assert set(values(table, range(ROWS))) == {5}
    with (job.local / name).open("r+b") as file:
        if is_deleted:
            os.unlink(job.local / name)
        file.truncate(0)
    assert set(values(table, range(ROWS))) == {5}
    assert len(caplog.messages) == (0 if is_deleted else 1)


def test_a_segment_that_was_cut_off_before_any_checkpoint_had_it_is_named(job: Job) -> None:
    tables = job.restored()
    table = tables.table(value_spec())
    put(table, range(ROWS), 5)
    (name,) = job.snapshot(tables).segments
    os.truncate(job.local / name, 5000)
    with pytest.raises(CheckpointCorruptedError, match=name):
        values(table, range(ROWS))


def test_a_worker_dies_of_a_file_cut_off_during_a_read_and_the_next_fetches_the_segment(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    tables = job.restored()
    put(tables.table(value_spec()), range(ROWS), 5)
    handle = job.completed(tables)
    (name,) = handle.segments
    path = str(job.local / name)
    worker = subprocess.run([sys.executable, "-c", CUT_OFF_DURING_A_READ, path], check=False)
    assert worker.returncode == -signal.SIGBUS
    job.workspace = Workspace()
    assert set(values(job.restored(handle).table(value_spec()), range(ROWS))) == {5}
    (warning,) = caplog.messages
    assert f"the local copy of segment {name} is damaged" in warning


def test_a_merge_fetches_a_damaged_local_copy_again(job: Job) -> None:
    tables = job.restored()
    table = tables.table(value_spec())
    put(table, range(ROWS), 5)
    handle = job.completed(tables)
    job.workspace = Workspace()
    (name,) = handle.segments
    (job.local / name).write_bytes(changed_in_the_middle((job.local / name).read_bytes()))
    merging = job.restored(handle, policy=MergePolicy(rewrite=1e9))
    put(merging.table(value_spec()), range(1), 6)
    merged = job.completed(merging)
    assert merged.segments.keys().isdisjoint(handle.segments)
    assert values(merging.table(value_spec()), range(ROWS)) == [6] + [5] * (ROWS - 1)


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_segment_that_storage_has_damaged_too_is_named_and_never_served(
    job: Job, *, is_gone: bool
) -> None:
    tables = job.restored()
    put(tables.table(value_spec()), range(ROWS), 5)
    handle = job.completed(tables)
    (name,) = handle.segments
    uri = uris(handle)[name]
    job.workspace = Workspace()
    written = (job.local / name).read_bytes()
    (job.local / name).write_bytes(changed_in_the_middle(written))
    store = file_system_for(uri)
    store.delete([uri])
    if not is_gone:
        file = store.create(uri)
        file.write(changed_in_the_middle(written))
        file.commit()
    table = job.restored(handle).table(value_spec())
    error = CheckpointNotFoundError if is_gone else CheckpointCorruptedError
    for _ in range(2):
        with pytest.raises(error, match=uri):
            values(table, range(ROWS))


def test_without_a_directory_segments_are_in_memory(job: Job) -> None:
    tables = job.restored(is_local=False)
    put(tables.table(value_spec()), range(ROWS), 5)
    handle = job.completed(tables)
    assert not job.local_files()
    restored = job.restored(handle, is_local=False)
    assert set(values(restored.table(value_spec()), range(ROWS))) == {5}
    assert not job.local_files()


@pytest.mark.parametrize("is_full", [True, False])
def test_what_the_disk_does_not_take_is_kept_in_memory(
    job: Job, monkeypatch: pytest.MonkeyPatch, *, is_full: bool
) -> None:
    tables = job.restored(policy=MergePolicy())
    table = tables.table(value_spec())
    put(table, range(ROWS), 1)
    job.completed(tables)
    before = job.local_files()
    put(table, range(0, ROWS, 2), 2)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC if is_full else errno.EROFS, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", full)
        handle = job.completed(tables)
        assert job.local_files() <= before
        restored = job.restored(handle)
        assert values(restored.table(value_spec()), range(ROWS)) == [2, 1] * (ROWS // 2)
    assert values(table, range(ROWS)) == [2, 1] * (ROWS // 2)
    restored = job.restored(handle)
    assert values(restored.table(value_spec()), range(ROWS)) == [2, 1] * (ROWS // 2)
    assert job.local_files()


def test_after_a_merge_that_storage_has_no_room_for_the_old_segments_serve_and_the_next_one_merges(
    faults: Faults, tmp_path: Path
) -> None:
    job = Job(faults.directory, tmp_path)
    tables = job.restored(
        policy=MergePolicy()
    )  # which merges a state as small as this with each batch
    table = tables.table(value_spec())
    put(table, range(ROWS), 1)
    before = job.completed(tables)
    put(table, range(0, ROWS, 2), 2)
    faults.run_out_of_space(1000)
    with pytest.raises(StorageFullError):
        job.snapshot(tables)
    tables.notify_checkpoint_aborted(job.checkpoint)
    assert values(table, range(ROWS)) == [2, 1] * (ROWS // 2)
    assert set(values(job.restored(before).table(value_spec()), range(ROWS))) == {1}
    faults.make_room()
    after = job.completed(tables)
    assert len(after.segments) == 1
    assert not after.segments.keys() & before.segments.keys()
    restored = job.restored(after)
    assert values(restored.table(value_spec()), range(ROWS)) == [2, 1] * (ROWS // 2)


def test_on_the_disk_of_its_storage_a_segment_is_written_once(
    local_directory: str, tmp_path: Path
) -> None:
    job = Job(local_directory, tmp_path / "local")
    tables = job.restored()
    table = tables.table(value_spec())
    put(table, range(ROWS), 1)
    aborted = job.snapshot(tables)
    aborted.discard_state()
    tables.notify_checkpoint_aborted(job.checkpoint)
    handle = job.completed(tables)
    ((name, uri),) = uris(handle).items()
    stored = Path(uri.removeprefix("file://"))
    assert stored.samefile(job.local / name)
    (stream,) = handle.segments.values()
    with stream.open_input_stream() as reader:  # which verifies it
        assert reader.read(-1) == stored.read_bytes()
    put(table, range(ROWS), 2)
    merging = job.restored(handle, policy=MergePolicy(rewrite=1e9))
    put(merging.table(value_spec()), range(1), 2)
    job.completed(merging)
    assert name not in job.local_files()
    assert stored.exists()


# ---- merging


def test_a_snapshot_makes_two_segments_at_most_and_reads_a_bounded_part_of_a_large_state(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = MergePolicy(
        fan_in=4,
        level_bytes=2e3,
        tier_bytes=20e3,
        least_slice_bytes=10e3,
        most_slice_bytes=20e3,
    )
    tables = job.restored(policy=policy)
    table = tables.table(value_spec())
    put(table, range(ROWS))  # 240 kB
    job.completed(tables)
    known: set[str] = set()
    merged_rows = []

    def counted(parts: Sequence[Part], *arguments: object, **named: object) -> SortedRows:
        merged_rows.append(sum(part.rows for part in parts))
        return merged_by_chunks(parts, *arguments, **named)  # type: ignore[arg-type]

    compaction = "holdfast.backends.keyed.columnar.compaction"
    monkeypatch.setattr(f"{compaction}.merged_by_chunks", counted)
    expected = [0] * ROWS
    for batch in range(150):
        changed = range(batch % 100, ROWS, 100)
        put(table, changed, batch)
        for key in changed:
            expected[key] = batch
        segments = job.completed(tables).segments.keys()
        assert len(segments - known) <= 2
        known |= segments
        if batch == 30:  # by now it knows that a batch changes little of what was written first
            merged_rows.clear()
    assert values(table, range(ROWS)) == expected
    assert max(merged_rows) <= 2 * 20e3 / 24
    runs = table.manifest.runs
    assert len(runs) <= 13
    assert sum(run.rows for run in runs) < 1.6 * ROWS


def test_small_batches_after_a_bulk_load_merge_no_more_than_small_batches_do(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = MergePolicy(
        fan_in=4,
        level_bytes=2e3,
        tier_bytes=20e3,
        least_slice_bytes=10e3,
        most_slice_bytes=20e3,
    )
    tables = job.restored(policy=policy)
    table = tables.table(value_spec())
    for first in range(0, ROWS, ROWS // 6):  # 40 kB each
        put(table, range(first, min(first + ROWS // 6, ROWS)), 1)
        job.completed(tables)
    merged_rows = []

    def counted(parts: Sequence[Part], *arguments: object, **named: object) -> SortedRows:
        merged_rows.append(sum(part.rows for part in parts))
        return merged_by_chunks(parts, *arguments, **named)  # type: ignore[arg-type]

    compaction = "holdfast.backends.keyed.columnar.compaction"
    monkeypatch.setattr(f"{compaction}.merged_by_chunks", counted)
    for batch in range(60):
        put(table, range(batch, ROWS, 100), 2)
        job.completed(tables)
    assert merged_rows
    assert max(merged_rows) <= 2 * 20e3 / 24
    assert len(table.manifest.runs) <= 12
    assert values(table, range(ROWS)) == ([2] * 60 + [1] * 40) * (ROWS // 100)


def test_memory_of_a_large_merge_is_given_back_when_no_other_comes() -> None:
    arena = Workspace().arena
    arena.array(30 << 20, np.uint8)
    assert arena.size > 30 << 20
    for _ in range(3):
        arena.reset()
        arena.array(8 << 20, np.uint8)
    assert arena.size > 30 << 20
    for _ in range(60):
        arena.reset()
        arena.array(1 << 20, np.uint8)
    assert arena.size <= 8 << 20


def test_rows_of_other_key_groups_go_when_they_are_merged(job: Job) -> None:
    tables = job.restored()
    put(tables.table(value_spec()), range(ROWS), 1)
    handle = job.completed(tables)
    half = ColumnarStateTables(KeyGroupRange(0, 3), [handle], policy=MergePolicy(rewrite=1e9))
    table = half.table(value_spec())
    put(table, range(1), 2)
    merged = job.snapshot(half)
    own = int((identities(range(ROWS)).sort_keys < 4 << 48).sum())
    assert table.manifest.runs[0].rows == own
    assert merged.key_groups == (0, 3)
    rows = [rows for table in read_tables([merged], GROUPS) for rows in table.rows()]
    assert sum(len(step) for step in rows) == own


# ---- folds and migrations


@pytest.mark.parametrize("is_merged", [True, False])
def test_a_sum_too_large_for_its_type_is_an_error_that_names_the_state(
    job: Job, *, is_merged: bool
) -> None:
    tables = job.restored(policy=MergePolicy(rewrite=1e9) if is_merged else NO_MERGES)
    table = tables.table(sum_spec())
    for _ in range(2):
        table.write(identities(range(2)), [pa.array([2**62, 1])], Operation.APPEND)
        if not is_merged:
            job.completed(tables)
    with pytest.raises(InvalidRequestError, match="state 's': a sum is"):
        if is_merged:
            job.completed(tables)
        else:
            values(table, range(2))


def widened(stored: TableSpec, columns: Sequence[pa.Array]) -> tuple[pa.Array, ...]:
    assert stored.values.types == [pa.int32()]
    return tuple(column.cast(pa.int64()) for column in columns)


def test_values_are_migrated_when_they_are_read_and_for_good_when_they_are_merged(
    job: Job,
) -> None:
    tables = job.restored()
    old = tables.table(sum_spec(pa.int32()))
    put(old, range(ROWS), 3)
    handle = job.completed(tables)
    restored = job.restored(handle)
    table = restored.table(sum_spec(), widened)
    big = pa.array([2**40] * 5)
    table.write(identities(range(5)), [big], Operation.APPEND)
    assert values(table, range(6)) == [2**40 + 3] * 5 + [3]
    both = job.completed(restored)
    assert len(read_manifest([both], GROUPS).tables["s"].specs) == 2
    with pytest.raises(StateMigrationError):
        job.restored(both).table(sum_spec())
    merging = job.restored(both, policy=MergePolicy(rewrite=1e9))
    table = merging.table(sum_spec(), widened)
    table.write(identities(range(1)), [big[:1]], Operation.APPEND)
    merged = job.completed(merging)
    assert len(read_manifest([merged], GROUPS).tables["s"].specs) == 1
    assert values(table, range(6)) == [2**41 + 3] + [2**40 + 3] * 4 + [3]
    table = job.restored(merged).table(sum_spec())
    assert values(table, range(6)) == [2**41 + 3] + [2**40 + 3] * 4 + [3]


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        (TableSpec("s", "map", KEY, pa.schema([("value", pa.int64())])), "kind"),
        (TableSpec("s", "value", pa.schema([("k", pa.int32())]), KEY), "keys"),
        (value_spec(pa.string()), "values"),
        (
            TableSpec("s", "value", KEY, pa.schema([("value", pa.int64())]), ttl_ms=1),
            "time to live",
        ),
    ],
)
def test_a_restored_table_that_does_not_fit_is_refused(
    job: Job, spec: TableSpec, what: str
) -> None:
    tables = job.restored()
    put(tables.table(value_spec()), range(10))
    with pytest.raises(StateMigrationError, match=what):
        job.restored(job.completed(tables)).table(spec)


@pytest.mark.parametrize(
    ("type", "value"),
    [
        (pa.string_view(), "view"),
        (pa.run_end_encoded(pa.int32(), pa.int64()), 7),
        (pa.dictionary(pa.int32(), pa.string()), "entry"),
        (pa.uuid(), bytes(16)),
    ],
    ids=str,
)
def test_values_that_arrow_takes_no_rows_of_are_looked_up_and_merged_too(
    job: Job, type: pa.DataType, value: object
) -> None:
    tables = job.restored(policy=MergePolicy(rewrite=1e9))
    table = tables.table(value_spec(type))
    for keys in (range(4), range(2)):
        put(table, keys, value)
        job.completed(tables)
    present, (column,) = table.get(identities(range(6)))
    assert present.tolist() == [True] * 4 + [False] * 2
    assert column.type == type
    assert column.slice(0, 4).equals(pa.array([value] * 4, type))
    assert [row is None for row in column.to_pylist()] == [False] * 4 + [True] * 2
    _, (absent,) = table.get(identities(range(7, 9)))
    assert absent.type == type


def test_a_table_is_asked_for_again_with_the_same_spec_only(job: Job) -> None:
    tables = job.restored()
    table = tables.table(value_spec())
    assert tables.table(value_spec()) is table
    with pytest.raises(InvalidRequestError, match="state 's'"):
        tables.table(value_spec(pa.string()))


def test_columns_of_other_types_or_lengths_are_refused(job: Job) -> None:
    table = job.restored().table(value_spec())
    with pytest.raises(InvalidRequestError, match="state 's'"):
        table.write(identities(range(2)), [pa.array(["a", "b"])])
    with pytest.raises(InvalidRequestError, match="state 's'"):
        table.write(identities(range(2)), [pa.array([1])])


def test_a_manifest_that_names_a_segment_that_the_handle_lacks_is_damaged(job: Job) -> None:
    tables = job.restored()
    put(tables.table(value_spec()), range(10))
    handle = job.completed(tables)
    with pytest.raises(CheckpointCorruptedError, match="doesn't lead to"):
        job.restored(SegmentsStateHandle(handle.key_groups, {}, handle.manifest))


def test_dead_timers_are_dropped_without_being_written(job: Job) -> None:
    spec = TableSpec("t", "timers", KEY, pa.schema([]), sub_key=pa.schema([("time", pa.int64())]))
    tables = job.restored()
    table = tables.table(spec)
    times = np.arange(ROWS)
    ids = Identities(time_part(times), (pa.array(times), pa.array(times)))
    table.write(ids, [])
    first = job.completed(tables)
    table.forget_up_to(ROWS // 2)
    second = job.completed(tables)
    assert uris(first) == uris(second)
    for timers in (table, job.restored(second).table(spec)):
        rows = timers.rows_between(np.array([0], np.uint64), np.array([8 << 48], np.uint64))
        left = rows.identities.columns[1].to_pylist()
        assert sorted(left) == list(range(ROWS // 2 + 1, ROWS))
        present, _ = timers.get(ids)
        assert present.tolist() == [time > ROWS // 2 for time in range(ROWS)]
