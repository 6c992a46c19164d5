"""Files of RocksDB on their way to and from storage: some at a time, all or none; and damage on the way."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from jobs.quick_disk import QUICK_DISK

from holdfast.backends.keyed import Keys, RocksDBSettings, StateTables, TableSpec
from holdfast.backends.keyed.rocksdb_files import decode_native, encode_native
from holdfast.backends.keyed.rocksdb_tables import RocksDBStateTables
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import AsyncSnapshot
from holdfast.errors import CheckpointCorruptedError, CheckpointNotFoundError, StorageFullError
from holdfast.locations import FileSystemCheckpointStorage
from holdfast.locations.file_systems import file_system_for
from holdfast.locations.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    SegmentsStateHandle,
)
from holdfast.testing import Faults

GROUPS = 8
ALL = KeyGroupRange(0, GROUPS - 1)
STATES = 4
"""Each has a separate sorted file."""

SPECS = [
    TableSpec(f"n{number}", "value", pa.schema([("k", pa.int64())]), pa.schema([("v", pa.int64())]))
    for number in range(STATES)
]
ROWS = range(1000)
PATIENCE_S = 60


class Job:
    """A job in a directory of storage that obeys, with a directory on the host."""

    def __init__(self, faults: Faults, host: Path) -> None:
        self.faults = faults
        self.host = host
        storage = FileSystemCheckpointStorage(faults.directory, inline_threshold=0)
        self._access = storage.create_checkpoint_storage("job")
        self._access.initialize_base_locations_for_checkpoint()
        self.tables = RocksDBStateTables(ALL, directory=str(host))
        keys = Keys.of([pa.array(ROWS, pa.int64())], GROUPS)
        for spec in SPECS:
            self.tables.table(spec).write(keys.identities, keys.columns)

    def snapshot(self, number: int) -> AsyncSnapshot:
        location = self._access.initialize_location_for_checkpoint(number)
        return self.tables.snapshot(number, location)

    def complete(self) -> SegmentsStateHandle:
        (handle,) = self.snapshot(1).run().state.managed_keyed
        assert isinstance(handle, SegmentsStateHandle)
        assert len(handle.segments) == STATES
        return handle

    def files(self) -> list[str]:
        file_system = file_system_for(self.faults.inner_directory)

        def below(directory: str) -> Iterator[str]:
            for entry in file_system.list(directory):
                if entry.is_directory:
                    yield from below(entry.uri)
                else:
                    yield entry.uri

        return list(below(self.faults.inner_directory))

    def capture(self) -> list[str]:
        return [str(path) for path in self.host.rglob("snapshot-*")]


@pytest.fixture
def job(faults: Faults) -> Iterator[Job]:
    host = Path(QUICK_DISK) / os.urandom(8).hex()
    job = Job(faults, host)
    yield job
    job.tables.close()


def rows_of(tables: StateTables) -> list[int]:
    return [sum(map(len, tables.table(spec).scan())) for spec in SPECS]


@pytest.mark.parametrize("threads", [1, 4])
def test_as_many_files_as_there_are_threads_are_on_the_way(
    job: Job, tmp_path: Path, threads: int
) -> None:
    max_running = 0
    now: set[int] = set()
    lock = threading.Lock()
    meeting = threading.Barrier(threads)

    def meet() -> None:
        nonlocal max_running
        with lock:
            now.add(threading.get_ident())
            max_running = max(max_running, len(now))
        meeting.wait(PATIENCE_S)
        with lock:
            now.discard(threading.get_ident())

    handle = job.complete()
    stored = msgspec.structs.replace(handle, manifest=ByteStreamStateHandle(content_of(handle)))
    job.faults.before("open", meet, "every")
    settings = RocksDBSettings(transfer_threads=threads)
    tables = RocksDBStateTables(ALL, [stored], directory=str(tmp_path), settings=settings)
    job.faults.clear()
    assert max_running == threads
    assert rows_of(tables) == [len(ROWS)] * STATES
    job.tables.close()
    max_running = 0
    job.tables = tables
    keys = Keys.of([pa.array([5], pa.int64())], GROUPS)
    for spec in SPECS:
        tables.table(spec).write(keys.identities, keys.columns)
    part = job.snapshot(2)
    # The manifest's stream comes after all others.
    for nth in range(1, STATES + 1):
        job.faults.before("create", meet, nth)
    job.faults.calls.clear()
    part.run()
    assert max_running == threads


def content_of(handle: SegmentsStateHandle) -> bytes:
    with handle.manifest.open_input_stream() as stream:
        return stream.read()


def test_failed_snapshot_leaves_nothing_and_the_next_is_complete(
    job: Job,
) -> None:
    before = job.files()
    job.faults.run_out_of_space(30_000)
    with pytest.raises(StorageFullError):
        job.snapshot(1).run()
    assert job.files() == before
    assert job.capture() == []
    job.tables.notify_checkpoint_aborted(1)
    job.faults.make_room()
    (handle,) = job.snapshot(2).run().state.managed_keyed
    assert isinstance(handle, SegmentsStateHandle)
    restored = RocksDBStateTables(ALL, [handle])
    assert rows_of(restored) == [len(ROWS)] * STATES
    restored.close()


@pytest.mark.parametrize("nth", range(1, STATES + 1))
def test_snapshot_cancelled_while_written_leaves_nothing(job: Job, nth: int) -> None:
    before = job.files()
    part = job.snapshot(1)
    job.faults.calls.clear()
    job.faults.before("write", part.cancel, nth)
    with pytest.raises(CancelledError):
        part.run()
    assert job.files() == before
    assert job.capture() == []


def test_missing_file_leaves_no_other_files_on_the_host(job: Job, tmp_path: Path) -> None:
    handle = job.complete()
    name = max(handle.segments)
    handle.segments[name].discard_state()
    with pytest.raises(CheckpointNotFoundError, match="shared"):
        RocksDBStateTables(ALL, [handle], directory=str(tmp_path))
    assert not list(tmp_path.glob("*.rocksdb"))
    assert {path.name for path in tmp_path.iterdir()} <= handle.segments.keys() - {name}


def test_truncated_sorted_file_is_named(job: Job, tmp_path: Path) -> None:
    handle = job.complete()
    (name, stream), *_ = handle.segments.items()
    with stream.open_input_stream() as source:
        content = source.read()
    cut = tmp_path / "cut.sst"
    cut.write_bytes(content[:-100])
    assert isinstance(stream, FileStateHandle)
    moved = msgspec.structs.replace(stream, uri=cut.as_uri())
    broken = msgspec.structs.replace(handle, segments=handle.segments | {name: moved})
    with pytest.raises(CheckpointCorruptedError, match=r"cut\.sst"):
        RocksDBStateTables(ALL, [broken], directory=str(tmp_path / "host"))


def test_changed_private_files_are_named(job: Job) -> None:
    handle = job.complete()
    manifest = decode_native(content_of(handle))
    (log,) = [name for name in manifest.private if name.startswith("MANIFEST")]
    flipped = bytearray(manifest.private[log])
    flipped[len(flipped) // 2] ^= 1
    missing = dict(manifest.private)
    del missing["CURRENT"]
    lost = min(manifest.files)
    fewer = {file: name for file, name in manifest.files.items() if file != lost}
    for changed, message in (
        ({"private": manifest.private | {log: bytes(flipped)}}, "MANIFEST|checksum"),
        ({"private": manifest.private | {log: flipped[:50]}}, "MANIFEST|Corruption"),
        ({"private": manifest.private | {"CURRENT": b"nonsense"}}, "CURRENT"),
        ({"private": missing}, "CURRENT"),
        ({"files": fewer}, lost),
    ):
        content = encode_native(msgspec.structs.replace(manifest, **changed))
        broken = msgspec.structs.replace(handle, manifest=ByteStreamStateHandle(content))
        with pytest.raises(CheckpointCorruptedError, match=message):
            RocksDBStateTables(ALL, [broken])
