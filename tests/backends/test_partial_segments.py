"""Segments that are only partly on the host: which bytes are fetched, in how many rounds, and from damaged copies."""

import errno
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from contracts.columnar_tables import (
    ROWS,
    TablesJob,
    identities,
    put,
    uris,
    value_spec,
    values,
)
from contracts.patience import HANGS_S
from hypothesis import given
from hypothesis import strategies as st

from holdfast.backends.keyed.segments import (
    ColumnarStateTables,
    FetchPolicy,
    MergePolicy,
    Workspace,
)
from holdfast.backends.keyed.segments.partial_segment import PartialSegment, prefetch
from holdfast.backends.keyed.segments.section import Section
from holdfast.backends.keyed.table import Identities, TableSpec, time_part
from holdfast.backends.keys import KeyGroupRange
from holdfast.common import map_in_parallel
from holdfast.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    StorageUnavailableError,
)
from holdfast.locations.file_systems import file_system_for
from holdfast.locations.handles import (
    FileStateHandle,
    SegmentsStateHandle,
    StreamStateHandle,
)
from holdfast.spark.subtask.local_files import FetchedStateHandle, FetchMeter
from holdfast.testing import Faults, ManualClock, counting_file_system

SEGMENTS = "holdfast.backends.keyed.segments"
KEYS = range(0, ROWS, 2)
TEXTS = value_spec(pa.string())
BLOCK_BYTES = 1 << 10
BY_BLOCKS = FetchPolicy(small_bytes=0, max_tail_bytes=4096, gap_bytes=0, whole_share=2)
"""Only the blocks that a look-up needs are fetched."""


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{SEGMENTS}.segment_writer.BLOCK_BYTES", BLOCK_BYTES)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of requests of each round."""
    sizes: list[int] = []

    def note(action: Callable[[Any], Any], items: Sequence[Any], *, max_threads: int) -> list[Any]:
        if items:
            sizes.append(len(items))
        return map_in_parallel(action, items, max_threads=max_threads)

    for module in ("partial_segment", "segment_store"):
        monkeypatch.setattr(f"{SEGMENTS}.{module}.map_in_parallel", note)
    return sizes


def write_texts(job: TablesJob, runs: int = 3) -> SegmentsStateHandle:
    """Write a run of all keys and later ones of some, each in its own segment."""
    tables = job.restore()
    table = tables.table(TEXTS)
    for run in range(runs):
        numbers = KEYS if not run else KEYS[:: run + 1]
        texts = [f"{run}:{number}" * (number % 7) for number in numbers]
        table.write(identities(numbers), [pa.array(texts)])
        handle = job.complete(tables)
    return handle


def text_of(number: int, runs: int = 3) -> str | None:
    if number % 2:
        return None
    run = next(run for run in reversed(range(runs)) if not (number // 2) % (run + 1))
    return f"{run}:{number}" * (number % 7)


def move_to_cold_host(job: TablesJob, handle: SegmentsStateHandle, directory: Path) -> None:
    """Continue on a host that has only garbage where bytes are missing."""
    job.local, job.workspace = directory, Workspace()
    directory.mkdir()
    for name, stream in handle.segments.items():
        (directory / f"{name}.partial").write_bytes(b"\xaa" * stream.size)


def test_lookup_of_a_key_takes_four_rounds_and_few_bytes(
    memory_directory: str, tmp_path: Path, rounds: list[int]
) -> None:
    with counting_file_system(memory_directory) as counts:
        job = TablesJob(counts.directory, tmp_path / "warm")
        handle = write_texts(job)
        job.local, job.workspace = tmp_path / "cold", Workspace()
        table = job.restore(handle, fetch_policy=BY_BLOCKS).table(TEXTS)
        counts.clear()
        assert values(table, range(6, 7)) == [text_of(6)]
        assert len(rounds) <= 4
        assert counts.bytes_read < sum(s.size for s in handle.segments.values()) / 2
        rounds.clear()
        assert values(table, range(6, 7)) == [text_of(6)]
        assert rounds == []


def test_complete_copies_are_read_without_requests(job: TablesJob, rounds: list[int]) -> None:
    handle = write_texts(job)
    job.workspace = Workspace()
    table = job.restore(handle).table(TEXTS)
    assert values(table, range(100)) == [text_of(number) for number in range(100)]
    assert rounds == []


def test_segment_with_many_needed_blocks_is_fetched_whole(
    job: TablesJob, tmp_path: Path, rounds: list[int]
) -> None:
    handle = write_texts(job)
    job.local, job.workspace = tmp_path / "cold", Workspace()
    table = job.restore(handle, fetch_policy=FetchPolicy(small_bytes=0)).table(TEXTS)
    assert values(table, range(ROWS)) == [text_of(number) for number in range(ROWS)]
    assert job.local_files() == handle.segments.keys()
    assert len(rounds) <= 4


@pytest.mark.parametrize("on_disk", [True, False])
def test_other_worker_reads_fetched_blocks_from_the_host(
    job: TablesJob, tmp_path: Path, *, on_disk: bool
) -> None:
    handle = write_texts(job)
    job.local, job.workspace = tmp_path / "cold", Workspace()
    table = job.restore(handle, fetch_policy=BY_BLOCKS).table(TEXTS)
    assert values(table, range(6)) == [text_of(number) for number in range(6)]
    if not on_disk:
        job.local = tmp_path / "other"
    job.workspace = Workspace()
    other = job.restore(handle, fetch_policy=BY_BLOCKS).table(TEXTS)
    for stream in handle.segments.values():
        stream.discard_state()
    if on_disk:
        assert values(other, range(6)) == [text_of(number) for number in range(6)]
    else:
        with pytest.raises(CheckpointNotFoundError):
            values(other, range(6))


def test_later_task_counts_its_own_requests(job: TablesJob, tmp_path: Path) -> None:
    handle = write_texts(job)
    job.local, job.workspace = tmp_path / "cold", Workspace()
    meters = []
    for number in (6, 5000):
        meters.append(FetchMeter(ManualClock(tick_ms=1)))
        segments: dict[str, StreamStateHandle] = {
            name: FetchedStateHandle.of(stream, meters[-1])
            for name, stream in handle.segments.items()
            if isinstance(stream, FileStateHandle)
        }
        counted = SegmentsStateHandle(handle.key_groups, segments, handle.manifest)
        table = job.restore(counted, fetch_policy=BY_BLOCKS).table(TEXTS)
        assert values(table, range(number, number + 1)) == [text_of(number)]
    assert all(meter.requests and meter.bytes for meter in meters)


@given(
    numbers=st.sets(st.integers(0, ROWS - 1), min_size=1, max_size=50),
    runs=st.integers(1, 3),
    gap_bytes=st.sampled_from([0, 5000]),
)
def test_lookups_never_read_missing_bytes(
    tmp_path_factory: pytest.TempPathFactory, numbers: set[int], runs: int, gap_bytes: int
) -> None:
    directory = tmp_path_factory.mktemp("job")
    job = TablesJob(f"memory://{directory}", directory / "warm")
    handle = write_texts(job, runs)
    move_to_cold_host(job, handle, directory / "cold")
    policy = FetchPolicy(small_bytes=0, max_tail_bytes=2048, gap_bytes=gap_bytes, whole_share=2)
    table = job.restore(handle, fetch_policy=policy).table(TEXTS)
    ascending = np.array(sorted(numbers))
    sort_keys = ascending.astype(np.uint64) * np.uint64((8 << 48) // ROWS)
    present, (texts,) = table.get(Identities(sort_keys, (pa.array(ascending),)))
    assert texts.to_pylist() == [text_of(number, runs) for number in ascending.tolist()]
    assert present.tolist() == [number % 2 == 0 for number in ascending.tolist()]


@given(starts=st.sets(st.integers(0, 99), min_size=1, max_size=10), length=st.integers(0, 2))
def test_ranges_of_cold_rows_equal_those_of_local_ones(
    tmp_path_factory: pytest.TempPathFactory, starts: set[int], length: int
) -> None:
    directory = tmp_path_factory.mktemp("job")
    job = TablesJob(f"memory://{directory}", directory / "warm")
    spec = TableSpec(
        "s", "map", TEXTS.key, pa.schema([("value", pa.list_(pa.int64()))]),
        sub_key=pa.schema([("sub", pa.string())]), ttl_ms=1000,
    )  # fmt: skip
    tables = job.restore()
    numbers = np.arange(100)
    subs = pa.array([f"sub {number}" for number in numbers])
    sort_keys = numbers.astype(np.uint64) << np.uint64(40)
    for step in (1, 3):
        rows = Identities(sort_keys[::step], (pa.array(numbers[::step]), subs[::step]))
        lists = [[step] * (number % 4) for number in numbers[::step].tolist()]
        tables.table(spec).write(rows, [pa.array(lists, pa.list_(pa.int64()))])
        handle = job.complete(tables)
    first = np.array(sorted(starts), np.uint64) << np.uint64(40)
    end = first + (np.uint64(length) << np.uint64(39))
    warm = tables.table(spec).rows_between(first, end)
    move_to_cold_host(job, handle, directory / "cold")
    cold = job.restore(handle, fetch_policy=BY_BLOCKS).table(spec).rows_between(first, end)
    assert cold.values[0].equals(warm.values[0])
    assert cold.identities.columns[1].equals(warm.identities.columns[1])


@pytest.mark.parametrize("is_list", [False, True])
def test_nested_and_nullable_columns_take_two_rounds_more(
    memory_directory: str, tmp_path: Path, rounds: list[int], *, is_list: bool
) -> None:
    type = pa.list_(pa.string()) if is_list else pa.string()
    spec = value_spec(type)
    with counting_file_system(memory_directory) as counts:
        job = TablesJob(counts.directory, tmp_path / "warm")
        tables = job.restore()
        texts = [None if number % 3 == 0 else f"{number}" * 100 for number in range(ROWS)]
        rows = [[text, text] for text in texts] if is_list else texts
        tables.table(spec).write(identities(range(ROWS)), [pa.array(rows, type)])
        handle = job.complete(tables)
        move_to_cold_host(job, handle, tmp_path / "cold")
        table = job.restore(handle, fetch_policy=BY_BLOCKS).table(spec)
        counts.clear()
        numbers = [1000, 4001, 4002, 9999]
        _, (read,) = table.get(
            Identities(identities(range(ROWS)).sort_keys[numbers], (pa.array(numbers),))
        )
        assert read.to_pylist() == [rows[number] for number in numbers]
        assert len(rounds) <= (6 if is_list else 5)
        assert counts.bytes_read < sum(s.size for s in handle.segments.values()) / 4


def test_scattered_rows_of_nested_columns_are_read_together(
    memory_directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = TablesJob(memory_directory, tmp_path / "warm")
    tables = job.restore()
    spec = value_spec(pa.list_(pa.int64()))
    rows = [[number] * (number % 4) for number in range(ROWS)]
    tables.table(spec).write(identities(range(ROWS)), [pa.array(rows, pa.list_(pa.int64()))])
    handle = job.complete(tables)
    move_to_cold_host(job, handle, tmp_path / "cold")
    table = job.restore(handle, fetch_policy=BY_BLOCKS).table(spec)
    reads = []
    read_rows = Section.column_between

    def count(section: Section, *arguments: Any) -> Any:
        reads.append(arguments)
        return read_rows(section, *arguments)

    monkeypatch.setattr(Section, "column_between", count)
    numbers = [*range(0, ROWS, 3)]
    _, (read,) = table.get(
        Identities(identities(range(ROWS)).sort_keys[numbers], (pa.array(numbers),))
    )
    assert read.to_pylist() == [rows[number] for number in numbers]
    assert 0 < len(reads) < 30  # not one for each row, in any of the rounds


def cold_segment(faults: Faults, tmp_path: Path, requests: int) -> PartialSegment:
    """A segment in storage that is fetched by a number of requests."""
    handle = write_texts(TablesJob(faults.directory, tmp_path), 1)
    ((name, stream),) = handle.segments.items()
    assert isinstance(stream, FileStateHandle)
    blocks = -(-stream.size // BLOCK_BYTES // requests)
    policy = FetchPolicy(small_bytes=0, gap_bytes=0, part_bytes=blocks * BLOCK_BYTES)
    return PartialSegment(name, stream, BLOCK_BYTES, None, policy)


def test_requests_of_a_round_are_in_progress_at_the_same_time(
    faults: Faults, tmp_path: Path
) -> None:
    segment = cold_segment(faults, tmp_path, 6)
    requests = segment.requests_for(segment.all_blocks)
    assert len(requests) >= 4
    barrier = threading.Barrier(len(requests), timeout=HANGS_S)
    faults.before("open", barrier.wait, nth="every")
    prefetch([(segment, segment.all_blocks)])
    assert segment.is_complete


def test_failed_round_keeps_fetched_blocks(faults: Faults, tmp_path: Path) -> None:
    segment = cold_segment(faults, tmp_path, 6)
    requests = len(segment.requests_for(segment.all_blocks))
    faults.calls.clear()
    faults.before("open", StorageUnavailableError("down, as planned"), nth=2)
    with pytest.raises(StorageUnavailableError, match="as planned"):
        segment.complete()
    faults.calls.clear()
    segment.complete()
    assert faults.calls.count("open") < requests


@pytest.mark.parametrize("times", [1, 2])
def test_block_damaged_on_its_way_is_fetched_once_again(
    faults: Faults, tmp_path: Path, times: int
) -> None:
    job = TablesJob(faults.directory, tmp_path / "warm")
    handle = write_texts(job, 1)
    ((name, uri),) = uris(handle).items()
    job.local, job.workspace = tmp_path / "cold", Workspace()
    table = job.restore(handle, fetch_policy=BY_BLOCKS).table(TEXTS)
    table.get(identities(range(6, 7)))
    faults.calls.clear()
    size = handle.segments[name].size
    for nth in range(1, times + 1):
        for offset in range(64, size, BLOCK_BYTES):
            faults.flip_bit(offset, nth=nth)
    if times == 1:
        assert values(table, range(5000, 5001)) == [text_of(5000, 1)]
    else:
        with pytest.raises(CheckpointCorruptedError, match=rf"block \d+ .*{uri}"):
            values(table, range(5000, 5001))


def test_damaged_block_of_the_sparse_file_is_fetched_again(
    job: TablesJob, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handle = write_texts(job, 1)
    job.local, job.workspace = tmp_path / "cold", Workspace()
    assert values(job.restore(handle, fetch_policy=BY_BLOCKS).table(TEXTS), range(6, 7))
    (path,) = job.local.iterdir()
    content = bytearray(path.read_bytes())
    for at in range(0, len(content), 8):
        content[at] ^= bool(content[at])
    path.write_bytes(content)
    job.workspace = Workspace()
    table = job.restore(handle, fetch_policy=BY_BLOCKS).table(TEXTS)
    assert values(table, range(6, 7)) == [text_of(6, 1)]
    assert any("the local copy of segment" in message for message in caplog.messages)


@pytest.mark.parametrize("room_bytes", [0, 5000, 20_000])
def test_blocks_are_in_memory_once_the_disk_is_full(
    job: TablesJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room_bytes: int
) -> None:
    handle = write_texts(job)
    job.local, job.workspace = tmp_path / "cold", Workspace()
    write, left, lock = os.pwrite, room_bytes, threading.Lock()

    def write_while_room(file: int, data: memoryview, offset: int) -> int:
        nonlocal left
        with lock:
            if not left:
                raise OSError(errno.ENOSPC, "no room")
            written = write(file, data[:left], offset)
            left -= written
        return written

    monkeypatch.setattr(f"{SEGMENTS}.sparse_bytes.os.pwrite", write_while_room)
    table = job.restore(handle, fetch_policy=BY_BLOCKS).table(TEXTS)
    assert values(table, range(100)) == [text_of(number) for number in range(100)]
    assert values(table, range(ROWS)) == [text_of(number) for number in range(ROWS)]
    assert not job.local_files() & handle.segments.keys()


def test_read_only_disk_is_replaced_by_memory(
    job: TablesJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int, __: int) -> None:
        raise OSError(errno.EROFS, "read-only")

    handle = write_texts(job)
    job.local, job.workspace = tmp_path / "cold", Workspace()
    monkeypatch.setattr(f"{SEGMENTS}.sparse_bytes.os.ftruncate", refuse)
    table = job.restore(handle, fetch_policy=BY_BLOCKS).table(TEXTS)
    assert values(table, range(100)) == [text_of(number) for number in range(100)]


def test_truncated_segment_in_storage_is_corrupt(job: TablesJob, tmp_path: Path) -> None:
    handle = write_texts(job, 1)
    ((_, uri),) = uris(handle).items()
    store = file_system_for(uri)
    with store.open(uri) as stream:
        content = stream.read()
    store.delete([uri])
    file = store.create(uri)
    file.write(content[: len(content) // 2])
    file.commit()
    job.local, job.workspace = tmp_path / "cold", Workspace()
    table = job.restore(handle, fetch_policy=BY_BLOCKS).table(TEXTS)
    with pytest.raises(CheckpointCorruptedError, match=f"ends before .*{uri}"):
        values(table, range(1))


def test_sweep_waits_for_segments_for_a_bounded_number_of_batches(
    memory_directory: str, tmp_path: Path
) -> None:
    policy = MergePolicy(
        fan_in=2, level_bytes=1000, tier_bytes=1000, min_step_bytes=1000, rewrite_factor=0
    )
    with counting_file_system(memory_directory) as counts:
        job = TablesJob(counts.directory, tmp_path / "warm")
        handle = write_texts(job)
        job.local, job.workspace = tmp_path / "cold", Workspace()
        size = sum(stream.size for stream in handle.segments.values())
        batches, merged = 0, False
        while not merged and batches < 90:
            job.workspace = Workspace()
            tables = job.restore(handle, policy=policy, fetch_policy=BY_BLOCKS)
            table = tables.table(TEXTS)
            counts.clear()
            put(table, range(batches, batches + 1), "new")
            handle = job.complete(tables)
            merged = table.manifest.cursor > 0
            batches += 1
        assert 10 < batches <= 70
        assert 0 < counts.bytes_read < size // 2  # only of the rows of the step
        table = job.restore(handle, policy=policy).table(TEXTS)
        assert values(table, range(ROWS)) == [
            "new" if number < batches else text_of(number) for number in range(ROWS)
        ]


def test_merge_of_small_slices_fetches_only_their_rows(
    memory_directory: str, tmp_path: Path
) -> None:
    with counting_file_system(memory_directory) as counts:
        job = TablesJob(counts.directory, tmp_path / "warm")
        handle = write_texts(job)
        size = sum(stream.size for stream in handle.segments.values())
        job.local, job.workspace = tmp_path / "cold", Workspace()
        merge_all = MergePolicy(rewrite_factor=1e9)
        groups = KeyGroupRange(3, 3)
        part = ColumnarStateTables(
            groups, [handle], directory=str(job.local), policy=merge_all, fetch_policy=BY_BLOCKS
        )
        own = range(ROWS * 3 // 8 + 1, ROWS * 4 // 8)
        table = part.table(TEXTS)
        put(table, own[:1], "new")
        counts.clear()
        job.snapshot(part)
        assert 0 < counts.bytes_read < size / 2
        expected: list[object] = [text_of(number) for number in own]
        assert values(table, own) == ["new", *expected[1:]]
        assert len(table.manifest.runs) == 1


TIMERS = TableSpec(
    "due", "timers", TEXTS.key, pa.schema([]), sub_key=pa.schema([("time", pa.int64())])
)


TIMER_ROWS = 20_000
TIMES = np.random.default_rng(1).permutation(TIMER_ROWS) * 5000 + 100_000


def write_timers(tables: ColumnarStateTables) -> None:
    """Write a timer for each key."""
    groups = np.arange(TIMER_ROWS, dtype=np.uint64) % np.uint64(8) << np.uint64(48)
    endings = np.arange(TIMER_ROWS, dtype=np.uint64) % np.uint64(5000)
    sort_keys = groups | time_part(TIMES) | endings
    order = np.argsort(sort_keys)
    columns = [pa.array(numbers[order]) for numbers in (np.arange(TIMER_ROWS), TIMES)]
    tables.table(TIMERS).write(Identities(sort_keys[order], tuple(columns)), [])


@pytest.mark.parametrize("fired_ms", [None, 40_000_000])
def test_earliest_timer_is_found_with_few_bytes(
    memory_directory: str, tmp_path: Path, fired_ms: int | None
) -> None:
    with counting_file_system(memory_directory) as counts:
        job = TablesJob(counts.directory, tmp_path / "warm")
        tables = job.restore()
        write_timers(tables)
        handle = job.complete(tables)
        if fired_ms is not None:
            tables.table(TIMERS).delete_up_to(fired_ms)
            handle = job.complete(tables)
        job.local, job.workspace = tmp_path / "cold", Workspace()
        table = job.restore(handle, fetch_policy=BY_BLOCKS).table(TIMERS)
        counts.clear()
        assert table.earliest_time() == int(
            min(time for time in TIMES.tolist() if time > (fired_ms or 0))
        )
        assert counts.bytes_read < sum(s.size for s in handle.segments.values()) / 4


def test_timers_of_a_key_are_found_by_sort_keys(memory_directory: str, tmp_path: Path) -> None:
    with counting_file_system(memory_directory) as counts:
        job = TablesJob(counts.directory, tmp_path / "warm")
        tables = job.restore()
        write_timers(tables)
        handle = job.complete(tables)
        move_to_cold_host(job, handle, tmp_path / "cold")
        table = job.restore(handle, fetch_policy=BY_BLOCKS).table(TIMERS)
        endings = np.zeros(1 << 16, bool)
        endings[[7, 4000]] = True
        bounds = np.array([0], np.uint64), np.array([4 << 48], np.uint64)
        counts.clear()
        rows = table.rows_between(*bounds, endings=endings)
        keys = np.arange(TIMER_ROWS)
        wanted = np.isin(keys % 5000, [7, 4000]) & (keys % 8 < 4)
        assert sorted(rows.identities.columns[0].to_pylist()) == keys[wanted].tolist()
        assert counts.bytes_read < sum(s.size for s in handle.segments.values()) / 2
