"""Copies of state files on local disk: a wrong copy is never used."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, rule

from holdfast.errors import CheckpointNotFoundError
from holdfast.locations import checkpoint_storage
from holdfast.locations.adapters import (
    ByteStreamStateHandle,
    CheckpointedStateScope,
    CheckpointStreamFactory,
    FileStateHandle,
)
from holdfast.spark.subtask import LocalFiles, digest_of, local_directory
from holdfast.testing import ManualClock

OPERATOR = "0" * 32
BIG = bytes(range(256)) * (9 << 12)  # larger than the buffer, and not a multiple of blocks


def factory_in(directory: str) -> CheckpointStreamFactory:
    access = checkpoint_storage(directory).create_checkpoint_storage("job")
    access.initialize_base_locations_for_checkpoint()
    return access.initialize_location_for_checkpoint(1)


class Host:
    """The copies on a host, as tasks use them, and the sources of the files that tasks read.

    Args:
        root: Directory of the copies.
        storage: Directory that tasks write state to.
        max_bytes: Bytes that the copies may have.
    """

    def __init__(self, root: Path, storage: str, max_bytes: int = 1 << 30) -> None:
        self.directory = root / OPERATOR
        self.factory = factory_in(storage)
        self.max_bytes = max_bytes
        self.sources: list[str] = []
        self.clock = ManualClock()

    def copies(self, checkpoint_id: int = 1, subtask: int = 0) -> LocalFiles:
        return LocalFiles(
            root=str(self.directory.parent),
            operator=OPERATOR,
            subtask=subtask,
            checkpoint_id=checkpoint_id,
            max_bytes=self.max_bytes,
            clock=self.clock,
        )

    def write(self, data: bytes, checkpoint_id: int = 1, subtask: int = 0) -> FileStateHandle:
        """Write the state of a task."""
        return write_file(self.copies(checkpoint_id, subtask).duplicate(self.factory), data)

    def run(
        self,
        data: bytes,
        checkpoint_id: int = 1,
        subtask: int = 0,
        restored: FileStateHandle | None = None,
    ) -> FileStateHandle:
        """Run a task that writes state, from its start to its end."""
        handle = self.write(data, checkpoint_id, subtask)
        names = {digest_of(file) for file in (restored, handle) if file is not None}
        self.copies(checkpoint_id, subtask).finish(names)
        return handle

    def read(self, handle: FileStateHandle, checkpoint_id: int = 2, subtask: int = 0) -> bytes:
        local = self.copies(checkpoint_id, subtask).read_through(handle, self.sources.append)
        with local.open_input_stream() as stream:
            return stream.read()

    def has(self, handle: FileStateHandle) -> bool:
        return os.path.exists(self.copies().path(handle))

    def names(self) -> list[str]:
        return sorted(os.listdir(self.directory)) if self.directory.exists() else []

    @property
    def only(self) -> Path:
        (name,) = self.names()
        return self.directory / name


def write_state(factory: CheckpointStreamFactory, data: bytes) -> object:
    with factory.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE) as stream:
        half = len(data) // 2
        stream.write(data[:half])
        stream.write(memoryview(data)[half:])
        return stream.close_and_get_handle()


def write_file(factory: CheckpointStreamFactory, data: bytes) -> FileStateHandle:
    handle = write_state(factory, data)
    assert isinstance(handle, FileStateHandle)
    return handle


@pytest.fixture
def host(tmp_path: Path, memory_directory: str) -> Host:
    return Host(make(tmp_path / "blockmgr-1") / "holdfast", memory_directory)


def make(path: Path) -> Path:
    path.mkdir()
    return path


def test_state_written_on_this_host_is_read_from_disk(host: Host) -> None:
    handle = host.write(BIG)
    handle.discard_state()  # storage can't have helped
    assert host.read(handle) == BIG
    assert host.sources == ["local"]


def test_copy_is_mapped_into_memory(host: Host) -> None:
    handle = host.write(BIG)
    before = pa.total_allocated_bytes()
    stream = host.copies().read_through(handle, host.sources.append).open_input_stream()
    assert isinstance(stream, pa.BufferReader)
    assert stream.read_buffer().to_pybytes() == BIG
    assert pa.total_allocated_bytes() == before


def test_state_read_from_storage_is_then_read_from_disk(host: Host) -> None:
    handle = write_file(host.factory, BIG)
    assert host.read(handle) == BIG
    handle.discard_state()
    assert host.read(handle, subtask=1) == BIG  # another subtask, too
    assert host.sources == ["storage", "local"]


def test_inline_state_leaves_no_file(host: Host) -> None:
    assert isinstance(
        write_state(host.copies().duplicate(host.factory), b"small"), ByteStreamStateHandle
    )
    assert write_state(host.copies().duplicate(host.factory), b"") is None
    assert host.names() == []
    inline = ByteStreamStateHandle(b"small")
    assert host.copies().read_through(inline, host.sources.append) is inline


def test_discarded_state_leaves_no_copy(host: Host) -> None:
    scope = CheckpointedStateScope.EXCLUSIVE
    with (
        host.copies().duplicate(host.factory).create_checkpoint_state_output_stream(scope) as stream
    ):
        stream.write(BIG)
    assert host.names() == []


def test_copy_is_readable_only_by_its_user(host: Host) -> None:
    host.write(BIG)
    assert host.directory.stat().st_mode & 0o777 == 0o700
    assert host.only.stat().st_mode & 0o777 == 0o600


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a flipped bit": flip,
    "cut": lambda path: os.truncate(path, len(BIG) - 1),
    "longer": lambda path: path.write_bytes(BIG + b"x"),
    "empty": lambda path: os.truncate(path, 0),
    "a directory": replace_by_directory,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_copy_is_not_used(host: Host, damage: Callable[[Path], object]) -> None:
    handle = host.write(BIG)
    damage(host.only)
    assert host.read(handle) == BIG
    assert host.read(handle) == BIG
    assert host.sources[0] == "storage"


def test_damaged_copy_of_a_missing_file_is_an_error(host: Host) -> None:
    handle = host.write(BIG)
    flip(host.only)
    handle.discard_state()
    with pytest.raises(CheckpointNotFoundError):
        host.read(handle)
    assert host.names() == []


def test_file_with_another_checksum_has_another_copy(host: Host, tmp_path: Path) -> None:
    handle = host.write(BIG)
    (tmp_path / "elsewhere").mkdir()
    other = write_file(factory_in(f"file://{tmp_path}/elsewhere"), BIG[::-1])
    renamed = FileStateHandle(handle.uri, other.size, other.checksum)
    assert not host.has(renamed)
    assert host.read(handle) == BIG


def test_deleted_directory_is_created_again(host: Host) -> None:
    handle = host.write(BIG)
    host.only.unlink()
    host.directory.rmdir()
    host.directory.parent.rmdir()
    assert host.read(handle) == BIG
    assert host.read(handle) == BIG
    assert host.sources == ["storage", "local"]


def test_copy_deleted_during_a_read_stays_readable(host: Host) -> None:
    handle = host.write(BIG)
    stream = host.copies().read_through(handle, host.sources.append).open_input_stream()
    host.only.unlink()
    assert stream.read() == BIG


@pytest.mark.parametrize("obstacle", ["no directory above", "a file in its place"])
def test_state_without_a_usable_directory_is_in_storage(
    tmp_path: Path, memory_directory: str, obstacle: str
) -> None:
    host = Host(tmp_path / "gone" / "holdfast", memory_directory)
    if obstacle == "a file in its place":
        (tmp_path / "gone").mkdir()
        host.directory.parent.touch()
    handle = host.write(BIG)
    assert host.read(handle) == BIG
    assert host.sources == ["storage"]


def test_full_disk_only_prevents_the_copy(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("holdfast.spark.subtask.duplicating_stream.os.write", full)
    handle = host.write(BIG)
    assert host.names() == []
    assert host.read(handle) == BIG
    assert host.names() == []
    assert host.sources == ["storage"]


def test_copies_of_the_last_two_checkpoints_stay(host: Host) -> None:
    other = host.run(BIG, subtask=1)
    handles: list[FileStateHandle] = []
    for number in range(1, 6):
        restored = handles[-1] if handles else None
        handles.append(host.run(BIG, checkpoint_id=number, restored=restored))
    assert list(map(host.has, handles)) == [False, False, False, True, True]
    assert host.has(other)


def test_older_attempt_deletes_copies_and_reads_stay_correct(host: Host) -> None:
    newest = host.run(BIG, checkpoint_id=9)
    host.run(BIG[::-1], checkpoint_id=4)  # a zombie
    assert not host.has(newest)
    assert host.read(newest, checkpoint_id=10) == BIG


def test_oldest_copies_are_deleted_first(host: Host) -> None:
    host.max_bytes = 3 * len(BIG)
    handles = []
    for number in range(5):
        handles.append(host.run(BIG, subtask=number))
        now_s = host.clock.now_ms() / 1000 + number
        os.utime(host.directory / f"{number}.1", (now_s, now_s))
    assert list(map(host.has, handles)) == [False, False, True, True, True]


def test_state_above_the_limit_has_no_copy(host: Host) -> None:
    host.max_bytes = len(BIG) - 1
    handle = host.write(BIG)
    assert host.names() == []
    assert host.read(handle) == BIG
    assert host.sources == ["storage"]


def test_files_of_a_killed_task_are_deleted(host: Host) -> None:
    killed = host.copies().new_copy()
    killed.write(BIG)
    (left,) = host.names()
    os.utime(host.directory / left, (host.clock.now_ms() / 1000,) * 2)
    host.clock.advance(3600)
    host.run(BIG)
    assert left in host.names(), "it may still be written"
    host.clock.advance(1)
    host.run(BIG)
    assert left not in host.names()
    killed.close()


def test_concurrent_readers_share_one_copy(host: Host) -> None:
    handle = write_file(host.factory, BIG)
    barrier = threading.Barrier(8)

    def read(number: int) -> bytes:
        barrier.wait()
        return host.read(handle, subtask=number % 2)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(read, range(8))) == {BIG}
    assert host.names() == [digest_of(handle)]


def test_stale_directory_of_a_killed_executor_is_deleted(tmp_path: Path) -> None:
    environment = {"SPARK_LOCAL_DIRS": f"{tmp_path}/blockmgr-mine,{tmp_path}/second"}
    old, young = (tmp_path / f"blockmgr-{name}" / "holdfast" for name in ("a", "b"))
    others = tmp_path / "others" / "holdfast"
    for directory in (old, young, others):
        directory.mkdir(parents=True)
        (directory / "copy").touch()
    clock = ManualClock()
    for directory in (old, others):
        os.utime(directory, (clock.now_ms() / 1000,) * 2)
    clock.advance(86400)
    os.utime(young, (clock.now_ms() / 1000,) * 2)
    clock.advance(1)
    assert local_directory(environment, clock) == f"{tmp_path}/blockmgr-mine/holdfast"
    assert not old.exists()
    assert old.parent.exists(), "it belongs to Spark"
    assert young.exists()
    assert others.exists()


def test_executors_of_one_application_share_its_directory() -> None:
    block_manager = {"SPARK_LOCAL_DIRS": "/data/of-application/blockmgr-1,/data2/x"}
    for cluster in ({"CONTAINER_ID": "1"}, {"SPARK_EXECUTOR_DIRS": "/data/of-application"}):
        assert (
            local_directory(block_manager | cluster, ManualClock())
            == "/data/of-application/holdfast"
        )
    assert local_directory({}, ManualClock()) is None


class Machine(RuleBasedStateMachine):
    """Write, read, damage and delete in any order: reads return the written bytes."""

    handles: Bundle[tuple[FileStateHandle, bytes]] = Bundle("handles")

    @initialize()
    def begin(self) -> None:
        root = Path(self.directory) / "holdfast"
        self.host = Host(root, f"file://{self.storage}", max_bytes=3 << 20)

    directory = ""
    storage = ""

    @rule(
        target=handles,
        fill=st.binary(min_size=1, max_size=3),
        subtask=st.integers(0, 1),
        checkpoint_id=st.integers(1, 5),
        ends=st.booleans(),
    )
    def write(
        self, fill: bytes, subtask: int, checkpoint_id: int, *, ends: bool
    ) -> tuple[FileStateHandle, bytes]:
        data = fill * (1 << 20)
        task = self.host.run if ends else self.host.write
        return task(data, checkpoint_id, subtask), data

    @rule(state=handles, subtask=st.integers(0, 1), checkpoint_id=st.integers(1, 6))
    def read(self, state: tuple[FileStateHandle, bytes], subtask: int, checkpoint_id: int) -> None:
        handle, data = state
        assert self.host.read(handle, checkpoint_id, subtask) == data

    @rule(number=st.integers(0, 5), damage=st.sampled_from([flip, os.unlink]))
    def damage(self, number: int, damage: Callable[[Path], object]) -> None:
        if number < len(self.host.names()):
            damage(self.host.directory / self.host.names()[number])

    @rule(state=consumes(handles))
    def discard(self, state: tuple[FileStateHandle, bytes]) -> None:
        state[0].discard_state()

    def teardown(self) -> None:
        for name in self.host.names() if hasattr(self, "host") else []:
            (self.host.directory / name).unlink()


def test_any_order_of_tasks_and_damage(tmp_path: Path) -> None:
    class Here(Machine):
        directory = str(tmp_path)
        storage = str(make(tmp_path / "storage"))

    case = Here.TestCase
    case.settings = settings(max_examples=20, stateful_step_count=12, deadline=None)
    case().runTest()


def test_digests_differ_in_every_part_of_a_value() -> None:
    names = [("job", "uid", 0), ("job", "uid", 1), ("job2", "uid", 0), ("jo", "buid", 0)]
    assert len(set(map(digest_of, names))) == len(names)
