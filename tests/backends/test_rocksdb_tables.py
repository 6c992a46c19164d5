"""Tables in RocksDB: their files in checkpoints and on the host."""

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from contracts.keyed.checkpoints import KeyedCheckpoints, parts_of
from jobs.quick_disk import QUICK_DISK
from jobs.rocksdb_rows import (
    ALL,
    HALVES,
    NUMBER,
    keys_of,
    multiples,
    put,
    read_rows,
    snapshot_and_complete,
    store_numbers,
)

from holdfast.backends.keyed import (
    BackendName,
    Operation,
    RocksDBSettings,
    open_tables,
    read_tables,
    readable_handles,
)
from holdfast.backends.keyed.locked_directory import LockedDirectory
from holdfast.backends.keyed.rocksdb_database import Database
from holdfast.backends.keyed.rocksdb_tables import RocksDBStateTables
from holdfast.errors import InvalidRequestError, StorageUnavailableError
from holdfast.locations.handles import (
    FileStateHandle,
    PlaceholderStreamStateHandle,
    SegmentsStateHandle,
)


def new_files(handle: SegmentsStateHandle) -> set[str]:
    return {
        name
        for name, stream in handle.segments.items()
        if not isinstance(stream, PlaceholderStreamStateHandle)
    }


def test_only_files_not_in_the_confirmed_checkpoint_are_written(
    checkpoints: KeyedCheckpoints,
) -> None:
    tables = RocksDBStateTables(ALL, directory=QUICK_DISK)
    table = tables.table(NUMBER)
    put(table, range(5000))
    first, _ = snapshot_and_complete(tables, checkpoints, 1)
    put(table, range(10), 2)
    second, _ = snapshot_and_complete(tables, checkpoints, 2)
    assert new_files(first)
    assert len(new_files(second)) == 2  # the first checkpoint is not confirmed
    assert not new_files(first) & new_files(second)
    tables.notify_checkpoint_complete(2)
    tables.notify_checkpoint_complete(1)  # late
    put(table, range(10), 3)
    third, completed = snapshot_and_complete(tables, checkpoints, 3)
    assert new_files(second) < third.segments.keys()
    assert len(new_files(third)) == 1
    assert sum(third.segments[name].size for name in new_files(third)) < first.size / 10
    tables.notify_checkpoint_aborted(3)
    fourth, _ = snapshot_and_complete(tables, checkpoints, 4)
    assert new_files(fourth).isdisjoint(third.segments)
    assert fourth.segments.keys() > new_files(second)
    tables.close()
    restored = RocksDBStateTables(ALL, [completed], directory=QUICK_DISK)
    assert read_rows(restored.table(NUMBER)) == multiples(range(5000)) | multiples(range(10), 3)
    fifth, _ = snapshot_and_complete(restored, checkpoints, 5)
    assert new_files(fifth) == set()
    assert fifth.segments.keys() == third.segments.keys()
    restored.close()


def test_files_of_a_savepoint_are_not_referred_to(checkpoints: KeyedCheckpoints) -> None:
    tables = RocksDBStateTables(ALL, directory=QUICK_DISK)
    put(tables.table(NUMBER), range(10))
    _, completed = snapshot_and_complete(tables, checkpoints, 1)
    tables.close()
    restored = RocksDBStateTables(ALL, [completed], directory=QUICK_DISK, may_refer=False)
    handle, _ = snapshot_and_complete(restored, checkpoints, 2)
    assert new_files(handle) == handle.segments.keys()
    assert handle.segments.keys().isdisjoint(completed.segments)
    restored.close()


def test_each_backend_resumes_from_each_other(checkpoints: KeyedCheckpoints) -> None:
    handles: list[SegmentsStateHandle] = []
    order: list[BackendName] = ["rocksdb", "columnar", "rocksdb", "heap", "rocksdb"]
    for number, backend in enumerate(order, 1):
        tables = open_tables(ALL, handles, backend=backend)
        table = tables.table(NUMBER)
        assert read_rows(table) == multiples(range((number - 1) * 10))
        put(table, range((number - 1) * 10, number * 10))
        reported, completed = snapshot_and_complete(tables, checkpoints, number)
        if handles:
            assert new_files(reported) == reported.segments.keys()
        handles = [completed]
        tables.close()


def test_rows_are_scaled_out_without_being_read_and_in_again(
    checkpoints: KeyedCheckpoints,
) -> None:
    whole = store_numbers(checkpoints, range(1000))
    parts = []
    for number, groups in enumerate(HALVES, 2):
        half = RocksDBStateTables(groups, parts_of([whole], groups), directory=QUICK_DISK)
        reported, completed = snapshot_and_complete(half, checkpoints, number)
        assert whole.segments.keys() & reported.segments.keys()
        parts.append(completed)
        half.close()
    joined = RocksDBStateTables(ALL, parts, directory=QUICK_DISK)
    assert read_rows(joined.table(NUMBER)) == multiples(range(1000))
    joined.close()


def test_deleted_rows_do_not_return_from_files_of_another_subtask(
    checkpoints: KeyedCheckpoints,
) -> None:
    whole = store_numbers(checkpoints, range(1000))
    parts = []
    kept: dict[int, int] = {}
    for number, groups in enumerate(HALVES, 2):
        half = RocksDBStateTables(groups, parts_of([whole], groups), directory=QUICK_DISK)
        table = half.table(NUMBER)
        if number == 2:
            for rows in list(table.scan()):
                table.write(rows.identities, rows.values, Operation.DELETE)
        kept |= read_rows(table)
        _, completed = snapshot_and_complete(half, checkpoints, number)
        parts.append(completed)
        half.close()
    assert 0 < len(kept) < 1000
    joined = RocksDBStateTables(ALL, parts, directory=QUICK_DISK)
    assert read_rows(joined.table(NUMBER)) == kept
    joined.close()


def test_closed_backend_releases_files_despite_open_tables(
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


def test_temporary_directory_of_another_user_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    user = os.getuid() + 1
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    RocksDBStateTables(ALL).close()
    monkeypatch.setattr("os.getuid", lambda: user)
    with pytest.raises(StorageUnavailableError, match=f"set TMPDIR.*holdfast-{user}"):
        RocksDBStateTables(ALL)


def test_range_delete_affects_only_its_state(tmp_path: Path) -> None:
    keys = [bytes([number]) for number in range(9)]
    with closing(Database(str(tmp_path / "db"), RocksDBSettings())) as database:
        for name in ("a", "b"):
            database.family(name).write(keys, keys)
        database.family("a").delete_range(keys[2], keys[7])
        assert database.family("a").get(keys) == [*keys[:2], *5 * [None], *keys[7:]]
        assert database.family("b").get(keys) == keys


def test_files_are_fetched_once_a_host(tmp_path: Path, checkpoints: KeyedCheckpoints) -> None:
    tables = RocksDBStateTables(ALL, directory=str(tmp_path))
    put(tables.table(NUMBER), range(100))
    _, completed = snapshot_and_complete(tables, checkpoints, 1)
    tables.close()
    lost = {
        name: FileStateHandle("memory:///nowhere", stream.size)
        for name, stream in completed.segments.items()
    }
    here = msgspec.structs.replace(completed, segments=lost)
    for _ in range(2):
        restored = RocksDBStateTables(ALL, [here], directory=str(tmp_path))
        assert read_rows(restored.table(NUMBER)) == multiples(range(100))
        restored.close()
    assert set(os.listdir(tmp_path)) == set(completed.segments)
    for name in completed.segments:
        (tmp_path / name).write_bytes(b"")  # cut off: it is fetched again
    restored = RocksDBStateTables(ALL, [completed], directory=str(tmp_path))
    assert read_rows(restored.table(NUMBER)) == multiples(range(100))
    restored.close()
    assert set(os.listdir(tmp_path)) == set(completed.segments)
    for name, stream in completed.segments.items():
        assert (tmp_path / name).stat().st_size == stream.size


def test_directory_is_locked_until_its_process_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, signal, os; from holdfast.backends.keyed.locked_directory import LockedDirectory; "
        "held = LockedDirectory(sys.argv[1]); print(held.path, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        path = process.stdout.readline().strip()
        own = LockedDirectory(str(tmp_path))
        assert os.path.isdir(path)
        process.kill()
        process.wait()
    other = LockedDirectory(str(tmp_path))
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
        _, completed = snapshot_and_complete(tables, checkpoints, number)
        (stored,) = read_tables(readable_handles([completed]), ALL)
        left.append(sum(map(len, stored.rows())))
        tables.close()
        tables = RocksDBStateTables(ALL, [completed], directory=QUICK_DISK)
        tables.advance_time(100)
    assert 5 < left[0] < 15_000
    assert left[1:] == [5, 5]
    assert len(read_rows(tables.table(spec))) == 5
    tables.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"memory_bytes": 1000},
        {"memory_bytes": 2 << 40},
        {"write_buffer_ratio": 1.0},
        {"bloom_bits": -1},
        {"block_bytes": 0},
        {"transfer_threads": 0},
    ],
    ids=str,
)
def test_rocksdb_setting_out_of_bounds_is_refused_with_its_value(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(InvalidRequestError, match=f"{name} must be .*got {value}"):
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
    _, completed = snapshot_and_complete(tables, checkpoints, 1)
    tables.close()
    restored = RocksDBStateTables(ALL, [completed], directory=QUICK_DISK)
    present, (values,) = restored.table(NUMBER).get(keys_of(range(20_000)).identities)
    assert present.all()
    assert np.sort(values.to_numpy()).tolist() == list(range(0, 40_000, 2))
    restored.close()


def test_all_databases_of_a_process_share_one_budget(checkpoints: KeyedCheckpoints) -> None:
    budget = 2 << 20
    reported: list[Mapping[str, int]] = []
    settings = RocksDBSettings(memory_bytes=budget, has_metrics=True)

    def open_backend() -> RocksDBStateTables:
        return RocksDBStateTables(
            ALL, directory=QUICK_DISK, settings=settings, on_metrics=reported.append
        )

    def usage_without_rows() -> int:
        tables = open_backend()
        tables.table(NUMBER)
        snapshot_and_complete(tables, checkpoints, 1)
        tables.close()
        return reported.pop()["block-cache-usage"]

    without_rows = usage_without_rows()
    every = [open_backend() for _ in range(3)]
    for number in range(3):
        for tables in every:
            put(tables.table(NUMBER), range(20_000), number)
            snapshot_and_complete(tables, checkpoints, number + 1)
            tables.table(NUMBER).get(keys_of(range(20_000)).identities)
    usages = [metrics["block-cache-usage"] for metrics in reported]
    assert usages[0] < usages[1] < usages[2]  # all databases report their total use
    assert budget // 2 < max(usages) <= budget
    for tables in every:
        tables.close()
    # A process that waits with no database open holds nothing.
    assert usage_without_rows() == without_rows


def test_state_name_unsupported_by_rocksdb_is_refused(
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


def test_missing_rocksdict_is_reported_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rocksdb_tables", "locked_directory", "rocksdb_errors"):
        monkeypatch.delitem(sys.modules, f"holdfast.backends.keyed.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(InvalidRequestError, match=r"holdfast\[rocksdb\]"):
        open_tables(ALL, backend="rocksdb")
