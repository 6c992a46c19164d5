"""File systems through fsspec: on disk, in memory, on SFTP and on a store of objects."""

import errno
import gc
import pickle
import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
import pytest
from contracts.files import write
from contracts.fsspec_stores import (
    ObjectStore,
    contents_below,
    known_hosts,
    module_server,
    opened_files,
    raising,
    server,
    sftp_directory,
)
from contracts.patience import HANGS_S
from contracts.processes import of_many_threads, run_in_fork
from contracts.values import EXCLUSIVE, read
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from servers.sftp import SftpServer

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointNotFoundError,
    StorageFullError,
    StorageUnavailableError,
)
from holdfast.locations import FileSystemCheckpointStorage
from holdfast.locations.adapters import (
    ExclusiveFileSystem,
    FileOutputStream,
    FileStateHandle,
    FileSystem,
    file_system_for,
)
from holdfast.locations.file_systems import fsspec_file_system
from holdfast.locations.file_systems.fsspec_file_system import FsspecFileSystem
from holdfast.locations.file_systems.fsspec_stores import milliseconds
from holdfast.testing import FileSystemContract, ManualClock

__all__ = ["known_hosts", "module_server", "opened_files", "server", "sftp_directory"]


class FsspecContract(FileSystemContract):
    """Tests that apply only to stores of fsspec.

    Attributes:
        has_files_in_place: Whether written bytes are visible before the file is closed.
    """

    has_files_in_place = False

    def test_it_can_not_publish(self, file_system: FileSystem) -> None:
        assert not isinstance(file_system, ExclusiveFileSystem)

    def test_it_pickles(self, file_system: FileSystem, directory: str) -> None:
        write(pickle.loads(pickle.dumps(file_system)), f"{directory}/x", b"1")
        assert self.files(directory) == {"x": b"1"}

    def test_existing_name_is_a_conflict_and_kept(
        self, file_system: FileSystem, directory: str
    ) -> None:
        self.put(f"{directory}/x", b"first")
        with pytest.raises(CheckpointConflictError):
            write(file_system, f"{directory}/x", b"second")
        assert self.files(directory) == {"x": b"first"}

    def test_writer_does_not_recreate_its_deleted_directory(
        self, file_system: FileSystem, directory: str
    ) -> None:
        if not self.has_directories:
            return
        file_system.prepare_directory(f"{directory}/a")
        stream = file_system.create(f"{directory}/a/x")
        stream.write(b"1")
        file_system.delete_tree(f"{directory}/a")
        with pytest.raises(CheckpointNotFoundError):
            stream.commit()
        assert list(file_system.list(directory)) == []

    def test_eight_threads_at_once_do_not_meet(
        self, file_system: FileSystem, directory: str
    ) -> None:
        def work(thread: int) -> bytes:
            own = f"{directory}/{thread % 2}/{thread}"
            file_system.prepare_directory(own)
            for name in "abc":
                write(file_system, f"{own}/{name}", name.encode() * 1000 * thread)
            with file_system.open(f"{own}/c") as stream:
                content = stream.read()
            file_system.delete([f"{own}/{name}" for name in "abc"])
            file_system.delete_empty_directory(own)
            return content

        with ThreadPoolExecutor(8) as pool:
            contents = list(pool.map(work, range(8)))
        assert contents == [b"c" * 1000 * thread for thread in range(8)]
        assert self.files(directory) == {}

    def test_failed_write_is_never_committed(
        self,
        file_system: FileSystem,
        directory: str,
        opened_files: list[Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        stream = file_system.create(f"{directory}/x")
        stream.write(b"12")
        [file] = opened_files
        with monkeypatch.context() as patch:
            patch.setattr(file, "write", raising(OSError(errno.ENOSPC, "full")))
            with pytest.raises(StorageFullError):
                stream.write(b"34")
        with pytest.raises(StorageUnavailableError):
            stream.commit()
        assert self.files(directory) == {}

    def test_lost_bytes_are_detected_before_the_rename(
        self,
        file_system: FileSystem,
        directory: str,
        opened_files: list[Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        stream = file_system.create(f"{directory}/x")
        stream.write(b"12")
        [file] = opened_files
        monkeypatch.setattr(file, "write", len)
        stream.write(b"3")
        with pytest.raises(StorageUnavailableError, match="only 2 of 3 bytes"):
            stream.commit()
        assert self.files(directory) == {}

    def test_early_end_of_a_file_is_an_error(self, file_system: FileSystem, directory: str) -> None:
        if not self.has_files_in_place:
            return
        self.put(f"{directory}/x", b"123")
        with file_system.open(f"{directory}/x") as stream:
            self.put(f"{directory}/x", b"12")
            with pytest.raises(StorageUnavailableError, match="ended at byte 2 of 3"):
                stream.read()

    def test_stored_state_is_read_unchanged(self, directory: str) -> None:
        storage = FileSystemCheckpointStorage(
            directory, inline_threshold=0, write_buffer_bytes=100, single_writer=True
        )
        location = storage.create_checkpoint_storage("job").initialize_location_for_checkpoint(1)
        state = secrets.token_bytes(1000)
        stream = location.create_checkpoint_state_output_stream(EXCLUSIVE)
        for begin in range(0, 1000, 30):
            stream.write(state[begin : begin + 30])
        handle = stream.close_and_get_handle()
        assert isinstance(handle, FileStateHandle)
        assert read(handle) == state
        handle.discard_state()
        location.dispose_on_failure()
        assert state not in self.files(directory).values()


class TestFsspecLocalFiles(FsspecContract):
    has_files_in_place = True

    @pytest.fixture
    def file_system(self) -> FileSystem:
        return fsspec_file_system("file")

    @pytest.fixture
    def directory(self, tmp_path: Path) -> str:
        return f"fsspec+file://{tmp_path}"

    def files(self, directory: str) -> dict[str, bytes]:
        return contents_below(Path(directory.removeprefix("fsspec+file://")))

    def put(self, uri: str, data: bytes) -> None:
        Path(uri.removeprefix("fsspec+file://")).write_bytes(data)


class TestFsspecMemory(FsspecContract):
    @pytest.fixture
    def file_system(self) -> FileSystem:
        return fsspec_file_system("memory")

    @pytest.fixture
    def directory(self) -> Iterator[str]:
        path = f"/{secrets.token_hex()}"
        store = MemoryFileSystem()
        store.mkdir(path)
        yield f"fsspec+memory://{path}"
        store.rm(path, recursive=True)

    def files(self, directory: str) -> dict[str, bytes]:
        path = directory.removeprefix("fsspec+memory://") + "/"
        return {
            name.removeprefix(path): file.getvalue()
            for name, file in MemoryFileSystem.store.items()
            if name.startswith(path)
        }

    def put(self, uri: str, data: bytes) -> None:
        MemoryFileSystem().pipe_file(uri.removeprefix("fsspec+memory://"), data)


class TestFsspecSftp(FsspecContract):
    has_files_in_place = True

    @pytest.fixture
    def file_system(self) -> FileSystem:
        return fsspec_file_system("sftp")

    @pytest.fixture
    def directory(self, server: SftpServer, sftp_directory: str) -> str:
        self.server = server
        return sftp_directory

    def files(self, directory: str) -> dict[str, bytes]:
        return contents_below(self.server.path_of(directory))

    def put(self, uri: str, data: bytes) -> None:
        self.server.path_of(uri).write_bytes(data)

    def test_one_of_eight_threads_wins_if_the_server_refuses_renames(
        self, file_system: FileSystem, directory: str
    ) -> None:
        start = threading.Barrier(8)

        def wins(racer: int) -> bool:
            stream = file_system.create(f"{directory}/x")
            stream.write(b"%d" % racer * 1000)
            start.wait()
            try:
                stream.commit()
            except CheckpointConflictError:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(wins, range(8)))
        assert won.count(True) == 1
        assert self.files(directory) == {"x": b"%d" % won.index(True) * 1000}

    def test_writer_between_the_check_and_the_rename_is_kept(
        self, file_system: FileSystem, directory: str
    ) -> None:
        def overtake(call: str) -> None:
            if call == "rename":
                self.put(f"{directory}/x", b"first")

        self.server.on_call = overtake
        with pytest.raises(CheckpointConflictError):
            write(file_system, f"{directory}/x", b"after")
        assert self.files(directory) == {"x": b"first"}


class TestFsspecObjects(FsspecContract):
    has_directories = False

    @pytest.fixture
    def file_system(self) -> Iterator[FileSystem]:
        fsspec.register_implementation("oci", ObjectStore, clobber=True)
        yield fsspec_file_system("oci")
        ObjectStore.clear_instance_cache()
        ObjectStore.objects.clear()
        ObjectStore.uploads.clear()

    @pytest.fixture
    def directory(self, file_system: FileSystem) -> str:
        return "oci://bucket/directory"

    def files(self, directory: str) -> dict[str, bytes]:
        path = directory.removeprefix("oci://") + "/"
        return {
            name.removeprefix(path): data
            for name, data in ObjectStore.objects.items()
            if name.startswith(path)
        }

    def put(self, uri: str, data: bytes) -> None:
        ObjectStore.objects[uri.removeprefix("oci://")] = data

    def test_discarded_file_is_not_uploaded_by_the_garbage_collector(
        self, file_system: FileSystem, directory: str
    ) -> None:
        stream = file_system.create(f"{directory}/x")
        stream.write(b"12")
        stream.abort()
        del stream
        gc.collect()
        assert ObjectStore.uploads == []

    @pytest.mark.usefixtures("file_system")
    def test_listings_are_not_remembered_even_by_a_store_without_the_option(self) -> None:
        class Remembering(ObjectStore):
            protocol = "oss"

            def __init__(self) -> None:
                super().__init__()

        fsspec.register_implementation("oss", Remembering, clobber=True)
        file_system = fsspec_file_system("oss")
        assert list(file_system.list("oss://bucket/directory")) == []
        for name in ("x", "y"):
            self.put(f"oci://bucket/directory/{name}", b"1")
            assert f"oss://bucket/directory/{name}" in {
                entry.uri for entry in file_system.list("oss://bucket/directory")
            }

    def test_file_of_unknown_age_is_new(self, directory: str) -> None:
        self.put(f"{directory}/x", b"1")
        clock = ManualClock()
        [entry] = FsspecFileSystem("oci", clock=clock).list(directory)
        assert entry.modified_ms == clock.now_ms()


def test_abort_does_not_wait_for_a_stuck_writer(tmp_path: Path, opened_files: list[Any]) -> None:
    stuck, may_write = threading.Event(), threading.Event()

    def write_slowly(_: bytes) -> None:
        stuck.set()
        assert may_write.wait(HANGS_S)

    def create() -> FileOutputStream:
        stream = fsspec_file_system("file").create(f"file://{tmp_path}/x")
        [file] = opened_files
        file.write = write_slowly
        return stream

    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(create).result()
        writer = pool.submit(stream.write, b"1")
        assert stuck.wait(HANGS_S)
        stream.abort()
        assert list(tmp_path.iterdir()) == []
        may_write.set()
        writer.result()


def test_open_failing_after_its_effect_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_and_fail(_: object, path: str, *__: object, **___: object) -> None:
        Path(path).touch()
        raise OSError("lost")

    monkeypatch.setattr(LocalFileSystem, "open", open_and_fail)
    with pytest.raises(StorageUnavailableError):
        fsspec_file_system("file").create(f"file://{tmp_path}/x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "moment",
    [
        1_700_000_000,
        1_700_000_000.0,
        1_700_000_000_000,
        datetime.fromtimestamp(1_700_000_000, tz=UTC),
        datetime.fromtimestamp(1_700_000_000, tz=UTC).replace(tzinfo=None),
        "2023-11-14T22:13:20Z",
        "2023-11-14T22:13:20.000+00:00",
        "20231114221320",
        "20231114221320.123",
    ],
)
def test_time_is_read_in_every_form_of_a_store(moment: object) -> None:
    assert milliseconds(moment) == 1_700_000_000_000


@pytest.mark.parametrize("moment", [None, "", "yesterday", "99999999999999", b"1"])
def test_invalid_time_is_not_guessed(moment: object) -> None:
    assert milliseconds(moment) is None


@of_many_threads
def test_fork_keeps_its_parents_file(tmp_path: Path) -> None:
    uri = f"fsspec+file://{tmp_path}/x"
    stream = file_system_for(uri).create(uri)
    stream.write(b"1")
    stream.sync()
    assert run_in_fork(stream.abort) == 0
    stream.commit()
    assert (tmp_path / "x").read_bytes() == b"1"
