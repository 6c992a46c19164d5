"""Tables in RocksDB: which files get into checkpoints, where they lie on the host, and what becomes of damage."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from jobs.quick_disk import QUICK_DISK

from holdfast.backends.keyed import (
    BackendName,
    Keys,
    Operation,
    RocksDBSettings,
    StateTable,
    StateTables,
    TableSpec,
    open_tables,
    read_tables,
    readable_handles,
)
from holdfast.backends.keyed.rocksdb import RocksDBStateTables
from holdfast.backends.keyed.rocksdb.database import Database
from holdfast.backends.keyed.rocksdb.held_directory import HeldDirectory
from holdfast.backends.keys import KeyGroupRange
from holdfast.errors import (
    CheckpointCorruptedError,
    InvalidRequestError,
    UnsupportedFormatError,
)
from holdfast.locations.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    PlaceholderStreamStateHandle,
    SegmentsStateHandle,
)
from holdfast.testing.contracts import KeyedCheckpoints, parts_of

GROUPS = 8
ALL = KeyGroupRange(0, GROUPS - 1)
HALVES = (KeyGroupRange(0, 2), KeyGroupRange(3, 7))
KEY = pa.schema([("k", pa.int64())])
NUMBER = TableSpec("n", "value", KEY, pa.schema([("value", pa.int64())]))


@pytest.fixture
def checkpoints() -> Iterator[KeyedCheckpoints]:
    checkpoints = KeyedCheckpoints()
    yield checkpoints
    checkpoints.delete()


def keys_of(numbers: range) -> Keys:
    return Keys.of([pa.array(numbers, pa.int64())], GROUPS)


def put(table: StateTable, numbers: range, factor: int = 1) -> None:
    keys = keys_of(numbers)
    values = keys.columns[0].to_numpy() * factor
    table.write(keys.identities, (pa.array(values),))


def held(table: StateTable) -> dict[int, int]:
    rows = list(table.scan())
    keys = [key for step in rows for key in step.identities.columns[0].to_pylist()]
    return dict(zip(keys, [v for step in rows for v in step.values[0].to_pylist()], strict=True))


def multiples(numbers: range, factor: int = 1) -> dict[int, int]:
    return {number: number * factor for number in numbers}


def report(
    tables: StateTables, checkpoints: KeyedCheckpoints, number: int
) -> tuple[SegmentsStateHandle, SegmentsStateHandle]:
    """What a subtask reports of a snapshot, and the handle that the checkpoint has."""
    state = tables.snapshot(number, checkpoints.location(number)).run()
    (reported,) = state.managed_keyed
    assert isinstance(reported, SegmentsStateHandle)
    (completed,) = checkpoints.completed(state)
    return reported, completed


def thousand_rows(checkpoints: KeyedCheckpoints) -> SegmentsStateHandle:
    """The state of a subtask with all key groups, in the first checkpoint."""
    tables = RocksDBStateTables(ALL, directory=QUICK_DISK)
    put(tables.table(NUMBER), range(1000))
    _, whole = report(tables, checkpoints, 1)
    tables.close()
    return whole


def new_files(handle: SegmentsStateHandle) -> set[str]:
    return {
        name
        for name, stream in handle.segments.items()
        if not isinstance(stream, PlaceholderStreamStateHandle)
    }


def test_only_files_that_the_last_confirmed_checkpoint_lacks_are_written(
    checkpoints: KeyedCheckpoints,
) -> None:
    tables = RocksDBStateTables(ALL, directory=QUICK_DISK)
    table = tables.table(NUMBER)
    put(table, range(5000))
    first, _ = report(tables, checkpoints, 1)
    put(table, range(10), 2)
    second, _ = report(tables, checkpoints, 2)
    assert new_files(first)
    assert len(new_files(second)) == 2  # the first checkpoint is not confirmed
    assert not new_files(first) & new_files(second)
    tables.notify_checkpoint_complete(2)
    tables.notify_checkpoint_complete(1)  # late
    put(table, range(10), 3)
    third, completed = report(tables, checkpoints, 3)
    assert new_files(second) < third.segments.keys()
    assert len(new_files(third)) == 1
    assert sum(third.segments[name].size for name in new_files(third)) < first.size / 10
    tables.notify_checkpoint_aborted(3)
    fourth, _ = report(tables, checkpoints, 4)
    assert new_files(fourth).isdisjoint(third.segments)
    assert fourth.segments.keys() > new_files(second)
    tables.close()
    restored = RocksDBStateTables(ALL, [completed], directory=QUICK_DISK)
    assert held(restored.table(NUMBER)) == multiples(range(5000)) | multiples(range(10), 3)
    fifth, _ = report(restored, checkpoints, 5)
    assert new_files(fifth) == set()
    assert fifth.segments.keys() == third.segments.keys()
    restored.close()


def test_files_of_a_savepoint_are_not_referred_to(checkpoints: KeyedCheckpoints) -> None:
    tables = RocksDBStateTables(ALL, directory=QUICK_DISK)
    put(tables.table(NUMBER), range(10))
    _, completed = report(tables, checkpoints, 1)
    tables.close()
    restored = RocksDBStateTables(ALL, [completed], directory=QUICK_DISK, may_refer=False)
    handle, _ = report(restored, checkpoints, 2)
    assert new_files(handle) == handle.segments.keys()
    assert handle.segments.keys().isdisjoint(completed.segments)
    restored.close()


def test_each_backend_goes_on_from_each_other(checkpoints: KeyedCheckpoints) -> None:
    handles: list[SegmentsStateHandle] = []
    order: list[BackendName] = ["rocksdb", "columnar", "rocksdb", "heap", "rocksdb"]
    for number, backend in enumerate(order, 1):
        tables = open_tables(ALL, handles, backend=backend)
        table = tables.table(NUMBER)
        assert held(table) == multiples(range((number - 1) * 10))
        put(table, range((number - 1) * 10, number * 10))
        reported, completed = report(tables, checkpoints, number)
        if handles:
            assert new_files(reported) == reported.segments.keys()
        handles = [completed]
        tables.close()


def test_rows_are_scaled_out_without_being_read_and_in_again(
    checkpoints: KeyedCheckpoints,
) -> None:
    whole = thousand_rows(checkpoints)
    parts = []
    for number, groups in enumerate(HALVES, 2):
        half = RocksDBStateTables(groups, parts_of([whole], groups), directory=QUICK_DISK)
        reported, completed = report(half, checkpoints, number)
        assert whole.segments.keys() & reported.segments.keys()
        parts.append(completed)
        half.close()
    joined = RocksDBStateTables(ALL, parts, directory=QUICK_DISK)
    assert held(joined.table(NUMBER)) == multiples(range(1000))
    joined.close()


def test_rows_that_one_subtask_deletes_do_not_come_back_from_files_of_another(
    checkpoints: KeyedCheckpoints,
) -> None:
    whole = thousand_rows(checkpoints)
    parts = []
    kept: dict[int, int] = {}
    for number, groups in enumerate(HALVES, 2):
        half = RocksDBStateTables(groups, parts_of([whole], groups), directory=QUICK_DISK)
        table = half.table(NUMBER)
        if number == 2:
            for rows in list(table.scan()):
                table.write(rows.identities, rows.values, Operation.DELETE)
        kept |= held(table)
        _, completed = report(half, checkpoints, number)
        parts.append(completed)
        half.close()
    assert 0 < len(kept) < 1000
    joined = RocksDBStateTables(ALL, parts, directory=QUICK_DISK)
    assert held(joined.table(NUMBER)) == kept
    joined.close()


def test_a_closed_backend_has_let_go_of_its_files_whoever_has_its_tables_still(
    tmp_path: Path,
) -> None:
    tables = RocksDBStateTables(ALL, directory=str(tmp_path))
    table = tables.table(NUMBER)
    put(table, range(10))
    tables.close()
    files = [os.path.realpath(entry) for entry in os.scandir("/proc/self/fd")]
    assert not [file for file in files if file.startswith(str(tmp_path))]
    with pytest.raises(InvalidRequestError, match="the backend is closed"):
        table.get(keys_of(range(10)).identities)


def test_a_range_of_keys_is_deleted_in_its_own_state_alone(tmp_path: Path) -> None:
    keys = [bytes([number]) for number in range(9)]
    with closing(Database(str(tmp_path / "db"), RocksDBSettings())) as database:
        for name in ("a", "b"):
            database.family(name).write(keys, keys)
        database.family("a").delete_range(keys[2], keys[7])
        assert database.family("a").get(keys) == [*keys[:2], *5 * [None], *keys[7:]]
        assert database.family("b").get(keys) == keys


def test_a_damaged_file_is_an_error_that_names_it(
    tmp_path: Path, checkpoints: KeyedCheckpoints
) -> None:
    tables = RocksDBStateTables(ALL, directory=QUICK_DISK)
    put(tables.table(NUMBER), range(5000))
    _, completed = report(tables, checkpoints, 1)
    tables.close()
    (name,) = completed.segments
    stream = completed.segments[name]
    with stream.open_input_stream() as source:
        content = bytearray(source.read())
    content[len(content) // 3] ^= 1
    path = tmp_path / "damaged"
    path.write_bytes(content)
    assert isinstance(stream, FileStateHandle)
    moved = msgspec.structs.replace(stream, uri=path.as_uri())
    handle = msgspec.structs.replace(completed, segments={name: moved})
    with pytest.raises(CheckpointCorruptedError, match="damaged"):
        RocksDBStateTables(ALL, [handle])
    # A copy on this host is verified where it is read, block by block.
    copy = tmp_path / name
    copy.write_bytes(content)
    damaged = RocksDBStateTables(ALL, [completed], directory=str(tmp_path))
    with pytest.raises(CheckpointCorruptedError, match=r"\.sst"):
        held(damaged.table(NUMBER))
    with pytest.raises(CheckpointCorruptedError, match=r"\.sst"):
        damaged.table(NUMBER).get(keys_of(range(5000)).identities)
    damaged.close()


@pytest.mark.parametrize("part", ["a block", "the index", "the end"])
def test_a_damaged_copy_is_deleted_and_fetched_again_by_the_next_attempt(
    tmp_path: Path, checkpoints: KeyedCheckpoints, part: str
) -> None:
    tables = RocksDBStateTables(ALL, directory=QUICK_DISK)
    put(tables.table(NUMBER), range(5000))
    _, completed = report(tables, checkpoints, 1)
    tables.close()
    (name,) = completed.segments
    with completed.segments[name].open_input_stream() as source:
        content = bytearray(source.read())
    whole = bytes(content)
    content[{"a block": len(content) // 3, "the index": -60, "the end": -5}[part]] ^= 1
    copy = tmp_path / name
    copy.write_bytes(content)
    beside = tmp_path / ("0" * 32)
    beside.write_bytes(content)  # another file, which nobody says is damaged

    def restored() -> dict[int, int]:
        tables = RocksDBStateTables(ALL, [completed], directory=str(tmp_path))
        try:
            return held(tables.table(NUMBER))
        finally:
            tables.close()

    with pytest.raises(CheckpointCorruptedError, match=rf"\.sst.* copy {copy} is deleted"):
        restored()
    assert os.listdir(tmp_path) == [beside.name]
    assert restored() == multiples(range(5000))
    assert copy.read_bytes() == whole


def test_all_copies_of_a_database_are_fetched_again_if_one_is_damaged(
    tmp_path: Path, checkpoints: KeyedCheckpoints
) -> None:
    tables = RocksDBStateTables(ALL, directory=QUICK_DISK)
    for number in range(3):  # too few files to be merged
        put(tables.table(NUMBER), range(number, 3000, 3))
        _, completed = report(tables, checkpoints, number + 1)
        tables.notify_checkpoint_complete(number + 1)
    tables.close()
    assert len(completed.segments) == 3
    for name, stream in completed.segments.items():
        with stream.open_input_stream() as source:
            content = bytearray(source.read())
        content[len(content) // 3] ^= 1
        (tmp_path / name).write_bytes(content)

    def restored() -> dict[int, int]:
        tables = RocksDBStateTables(ALL, [completed], directory=str(tmp_path))
        try:
            return held(tables.table(NUMBER))
        finally:
            tables.close()

    with pytest.raises(CheckpointCorruptedError, match="and 2 others of this database: try again"):
        restored()
    assert os.listdir(tmp_path) == []
    assert restored() == multiples(range(3000))


def test_files_are_fetched_once_a_host(tmp_path: Path, checkpoints: KeyedCheckpoints) -> None:
    tables = RocksDBStateTables(ALL, directory=str(tmp_path))
    put(tables.table(NUMBER), range(100))
    _, completed = report(tables, checkpoints, 1)
    tables.close()
    lost = {
        name: FileStateHandle("memory:///nowhere", stream.size)
        for name, stream in completed.segments.items()
    }
    here = msgspec.structs.replace(completed, segments=lost)
    for _ in range(2):
        restored = RocksDBStateTables(ALL, [here], directory=str(tmp_path))
        assert held(restored.table(NUMBER)) == multiples(range(100))
        restored.close()
    assert set(os.listdir(tmp_path)) == set(completed.segments)
    for name in completed.segments:
        (tmp_path / name).write_bytes(b"")  # cut off: it is fetched again
    restored = RocksDBStateTables(ALL, [completed], directory=str(tmp_path))
    assert held(restored.table(NUMBER)) == multiples(range(100))
    restored.close()
    assert set(os.listdir(tmp_path)) == set(completed.segments)
    for name, stream in completed.segments.items():
        assert (tmp_path / name).stat().st_size == stream.size


def test_a_directory_is_its_process_own_until_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, signal, os; from holdfast.backends.keyed.rocksdb.held_directory import HeldDirectory; "
        "held = HeldDirectory(sys.argv[1]); print(held.path, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        path = process.stdout.readline().strip()
        own = HeldDirectory(str(tmp_path))
        assert os.path.isdir(path)
        process.kill()
        process.wait()
    other = HeldDirectory(str(tmp_path))
    assert not os.path.exists(path)
    assert os.path.isdir(own.path)
    own.release()
    other.release()
    assert os.listdir(tmp_path) == []


def test_expired_rows_are_deleted_little_by_little(checkpoints: KeyedCheckpoints) -> None:
    spec = replace(NUMBER, ttl_ms=100)
    tables = RocksDBStateTables(ALL, directory=QUICK_DISK)
    table = tables.table(spec)
    put(table, range(15_000))
    tables.advance_time(99)
    put(table, range(5))
    tables.advance_time(100)
    left = []
    for number in (1, 2, 3):
        _, completed = report(tables, checkpoints, number)
        (stored,) = read_tables(readable_handles([completed]), ALL)
        left.append(sum(map(len, stored.rows())))
        tables.close()
        tables = RocksDBStateTables(ALL, [completed], directory=QUICK_DISK)
        tables.advance_time(100)
    assert 5 < left[0] < 15_000
    assert left[1:] == [5, 5]
    assert len(held(tables.table(spec))) == 5
    tables.close()


def test_what_is_no_manifest_or_a_newer_one_is_refused(checkpoints: KeyedCheckpoints) -> None:
    tables = RocksDBStateTables(ALL, directory=QUICK_DISK)
    put(tables.table(NUMBER), range(10))
    _, completed = report(tables, checkpoints, 1)
    tables.close()
    with completed.manifest.open_input_stream() as stream:
        content = stream.read()
    for damaged in (content[:12], content[:-1], content[:40] + b"x" + content[41:]):
        handle = msgspec.structs.replace(completed, manifest=ByteStreamStateHandle(damaged))
        with pytest.raises(CheckpointCorruptedError, match="manifest"):
            RocksDBStateTables(ALL, [handle], directory=QUICK_DISK)
    lacking = msgspec.structs.replace(completed, segments={})
    with pytest.raises(CheckpointCorruptedError, match="which its handle doesn't lead to"):
        RocksDBStateTables(ALL, [lacking], directory=QUICK_DISK)
    with pytest.raises(UnsupportedFormatError, match="RocksDB"):
        read_tables([completed], ALL)


@pytest.mark.parametrize(
    "wrong",
    [
        {"memory_bytes": 1000},
        {"write_buffer_ratio": 1.0},
        {"bloom_bits": -1},
        {"block_bytes": 0},
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        RocksDBSettings(**wrong)


@pytest.mark.parametrize("style", ["level", "universal"])
@pytest.mark.parametrize("compression", ["none", "lz4", "zstd", "snappy"])
def test_rows_outlive_little_memory_in_any_form_of_files(
    checkpoints: KeyedCheckpoints, style: str, compression: str
) -> None:
    settings = RocksDBSettings(
        memory_bytes=1 << 20,
        bloom_bits=0,
        compaction_style=style,  # type: ignore[arg-type]
        compression=compression,  # type: ignore[arg-type]
    )
    tables = RocksDBStateTables(ALL, directory=QUICK_DISK, settings=settings)
    for factor in (1, 2):
        put(tables.table(NUMBER), range(20_000), factor)
    _, completed = report(tables, checkpoints, 1)
    tables.close()
    restored = RocksDBStateTables(ALL, [completed], directory=QUICK_DISK)
    present, (values,) = restored.table(NUMBER).get(keys_of(range(20_000)).identities)
    assert present.all()
    assert np.sort(values.to_numpy()).tolist() == list(range(0, 40_000, 2))
    restored.close()


def test_all_databases_of_a_process_share_one_budget(checkpoints: KeyedCheckpoints) -> None:
    budget = 2 << 20
    said: list[Mapping[str, int]] = []
    settings = RocksDBSettings(memory_bytes=budget, has_metrics=True)

    def opened() -> RocksDBStateTables:
        return RocksDBStateTables(
            ALL, directory=QUICK_DISK, settings=settings, on_metrics=said.append
        )

    def usage_without_rows() -> int:
        tables = opened()
        tables.table(NUMBER)
        report(tables, checkpoints, 1)
        tables.close()
        return said.pop()["block-cache-usage"]

    without_rows = usage_without_rows()
    every = [opened() for _ in range(3)]
    for number in range(3):
        for tables in every:
            put(tables.table(NUMBER), range(20_000), number)
            report(tables, checkpoints, number + 1)
            tables.table(NUMBER).get(keys_of(range(20_000)).identities)
    usages = [metrics["block-cache-usage"] for metrics in said]
    assert usages[0] < usages[1] < usages[2]  # what is told is what all use together
    assert budget // 2 < max(usages) <= budget
    for tables in every:
        tables.close()
    # A process that waits with no database open holds nothing.
    assert usage_without_rows() == without_rows


def test_a_name_that_rocksdb_cannot_have_is_refused_whoever_has_stored_it(
    checkpoints: KeyedCheckpoints,
) -> None:
    spec = replace(NUMBER, name="a\0b")
    with pytest.raises(InvalidRequestError, match=r"'a\\x00b'.*another backend"):
        RocksDBStateTables(ALL).table(spec)
    columns = open_tables(ALL)
    put(columns.table(spec), range(3))
    handles = checkpoints.run(columns.snapshot(1, checkpoints.location(1)))
    with pytest.raises(InvalidRequestError, match=r"'a\\x00b'.*another backend"):
        RocksDBStateTables(ALL, handles)


def test_without_rocksdict_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        name for name in sys.modules if name.startswith("holdfast.backends.keyed.rocksdb")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("holdfast.backends.keyed.rocksdb")
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(InvalidRequestError, match=r"holdfast\[rocksdb\]"):
        open_tables(ALL, backend="rocksdb")
