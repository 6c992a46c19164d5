import errno
import gc
import io
import logging
import pickle
import secrets
import shutil
import socket
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import paramiko
import pytest
from contracts.patience import HANGS_S
from contracts.processes import forked, of_many_threads, output_of
from contracts.values import EXCLUSIVE, read
from fsspec.config import conf
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.implementations.sftp import SFTPFileSystem
from fsspec.registry import known_implementations
from servers.sftp import SftpServer

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageFullError,
    StorageUnavailableError,
)
from holdfast.locations import FileSystemCheckpointStorage
from holdfast.locations.adapters import (
    ExclusiveFileSystem,
    FileStateHandle,
    FileSystem,
    RetryPolicy,
    file_system_for,
)
from holdfast.locations.file_systems import (
    RetryingFileSystem,
    fsspec_file_system,
    milliseconds,
)
from holdfast.locations.file_systems.fsspec.sftp import Sftp
from holdfast.testing import FileSystemContract, ManualClock

PASSWORD = secrets.token_hex()


@pytest.fixture(scope="module")
def module_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SftpServer]:
    # Connections that break are logged by both ends.
    loggers = [logging.getLogger(name) for name in ("paramiko", "asyncssh")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    with SftpServer(tmp_path_factory.mktemp("sftp"), PASSWORD) as server:
        yield server
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture
def known_hosts(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file, empty, of a user who has nothing else."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    (home / ".ssh").mkdir()
    file = home / ".ssh/known_hosts"
    file.touch()
    return file


@pytest.fixture
def server(
    module_server: SftpServer, known_hosts: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SftpServer]:
    """A server that does nothing special yet, and what clients need to be let in."""
    known_hosts.write_text(module_server.known_host)
    login = {"password": PASSWORD, "allow_agent": False, "look_for_keys": False}
    monkeypatch.setitem(conf, "sftp", login)
    module_server.on_call = lambda call: None
    module_server.logins = 0
    module_server.passwords.clear()
    yield module_server
    if not module_server.is_running:
        module_server.start()
    for connection in list(Sftp._cache.values()):
        connection.client.close()
    Sftp.clear_instance_cache()


@pytest.fixture
def sftp_directory(server: SftpServer) -> str:
    """URI of an empty directory of the server."""
    path = server.root / secrets.token_hex()
    path.mkdir()
    return f"{server.uri}/{path.name}"


def files_below(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def write(file_system: FileSystem, uri: str, data: bytes) -> None:
    stream = file_system.create(uri)
    try:
        stream.write(data)
        stream.commit()
    finally:
        stream.abort()


class FsspecContract(FileSystemContract):
    """What fsspec's stores share with each other only."""

    def test_it_can_not_publish(self, file_system: FileSystem) -> None:
        assert not isinstance(file_system, ExclusiveFileSystem)

    def test_it_pickles(self, file_system: FileSystem, directory: str) -> None:
        write(pickle.loads(pickle.dumps(file_system)), f"{directory}/x", b"1")
        assert self.files(directory) == {"x": b"1"}

    def test_a_name_that_is_taken_is_a_conflict_and_kept(
        self, file_system: FileSystem, directory: str
    ) -> None:
        self.put(f"{directory}/x", b"first")
        with pytest.raises(CheckpointConflictError):
            write(file_system, f"{directory}/x", b"second")
        assert self.files(directory) == {"x": b"first"}

    def test_a_writer_does_not_bring_its_deleted_directory_back(
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
                found = stream.read()
            file_system.delete([f"{own}/{name}" for name in "abc"])
            file_system.delete_empty_directory(own)
            return found

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(work, range(8)))
        assert found == [b"c" * 1000 * thread for thread in range(8)]
        assert self.files(directory) == {}

    def test_a_write_that_failed_is_never_committed(
        self, file_system: FileSystem, directory: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stream: Any = file_system.create(f"{directory}/x")
        stream.write(b"12")
        with monkeypatch.context() as patch:
            patch.setattr(stream, "_file", Raising(OSError(errno.ENOSPC, "full")), raising=True)
            with pytest.raises(StorageFullError):
                stream.write(b"34")
        with pytest.raises(StorageUnavailableError):
            stream.commit()
        assert self.files(directory) == {}

    def test_bytes_that_the_store_lost_are_noticed_before_the_file_has_its_name(
        self, file_system: FileSystem, directory: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stream: Any = file_system.create(f"{directory}/x")
        stream.write(b"12")
        monkeypatch.setattr(stream, "_size", 3)
        with pytest.raises(StorageUnavailableError, match="2 bytes of the 3 written"):
            stream.commit()
        assert self.files(directory) == {}

    def test_a_file_that_ends_too_early_is_not_taken_for_whole(
        self, file_system: FileSystem, directory: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.put(f"{directory}/x", b"12")
        with file_system.open(f"{directory}/x") as stream:
            monkeypatch.setattr(stream, "_size", 3)
            with pytest.raises(StorageUnavailableError, match="ended at byte 2 of 3"):
                stream.read()

    def test_state_comes_back_as_it_was_stored(self, directory: str) -> None:
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


class Raising:
    """In place of anything: every method fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def fail(*arguments: object) -> None:
            raise self._error

        return fail


class TestFsspecOfLocalFiles(FsspecContract):
    @pytest.fixture
    def file_system(self) -> FileSystem:
        return fsspec_file_system("file")

    @pytest.fixture
    def directory(self, tmp_path: Path) -> str:
        return f"fsspec+file://{tmp_path}"

    def files(self, directory: str) -> dict[str, bytes]:
        return files_below(Path(directory.removeprefix("fsspec+file://")))

    def put(self, uri: str, data: bytes) -> None:
        Path(uri.removeprefix("fsspec+file://")).write_bytes(data)


class TestFsspecOfMemory(FsspecContract):
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


class TestFsspecOfSftp(FsspecContract):
    @pytest.fixture
    def file_system(self) -> FileSystem:
        return fsspec_file_system("sftp")

    @pytest.fixture
    def directory(self, server: SftpServer, sftp_directory: str) -> str:
        self.server = server
        return sftp_directory

    def files(self, directory: str) -> dict[str, bytes]:
        return files_below(self.server.path_of(directory))

    def put(self, uri: str, data: bytes) -> None:
        self.server.path_of(uri).write_bytes(data)

    def test_one_of_eight_racing_threads_wins_where_the_servers_rename_refuses(
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

    def test_whoever_comes_between_the_look_and_the_rename_is_not_overwritten(
        self, file_system: FileSystem, directory: str
    ) -> None:
        def overtake(call: str) -> None:
            if call == "rename":
                self.put(f"{directory}/x", b"first")

        self.server.on_call = overtake
        with pytest.raises(CheckpointConflictError):
            write(file_system, f"{directory}/x", b"after")
        assert self.files(directory) == {"x": b"first"}


class ObjectStore(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Like fsspec's of the clouds: no directories, listings that are remembered, buffered files."""

    protocol = "oci"
    objects: ClassVar[dict[str, bytes]] = {}
    uploads: ClassVar[list[str]] = []

    def ls(self, path: str, detail: bool = True, **_: object) -> list[Any]:  # noqa: FBT001, FBT002
        path = self._strip_protocol(path)
        remembered = self._ls_from_cache(path)
        if remembered is not None:
            return list(remembered)
        entries = {}
        for name in [name for name in self.objects if f"{name}/".startswith(f"{path}/")]:
            below, _separator, deeper = name.removeprefix(path).lstrip("/").partition("/")
            full = f"{path}/{below}".rstrip("/")
            kind, size = ("directory", 0) if deeper else ("file", len(self.objects[name]))
            entries[full] = {"name": full, "size": size, "type": kind}
        if not entries:
            raise FileNotFoundError(path)
        self.dircache[path] = list(entries.values())
        return list(entries.values())

    def invalidate_cache(self, path: str | None = None) -> None:
        self.dircache.clear()
        super().invalidate_cache(path)

    def _rm(self, path: str) -> None:
        del self.objects[self._strip_protocol(path)]

    def rm_file(self, path: str) -> None:
        self.objects.pop(self._strip_protocol(path), None)  # as S3 does

    def rmdir(self, path: str) -> None:
        raise OSError("there are only buckets")

    def cp_file(self, path1: str, path2: str, **_: object) -> None:
        try:
            self.objects[path2] = self.objects[path1]
        except KeyError:
            raise FileNotFoundError(path1) from None

    def _open(self, path: str, mode: str = "rb", **_: object) -> "ObjectFile":
        return ObjectFile(self, path, mode, cache_type="none")

    def modified(self, path: str) -> datetime:
        raise NotImplementedError


class ObjectFile(fsspec.spec.AbstractBufferedFile):  # type: ignore[misc]
    """Uploaded when it is closed, as a whole."""

    def _initiate_upload(self) -> None:
        self.parts = b""

    def _upload_chunk(self, final: bool = False) -> None:  # noqa: FBT001, FBT002
        self.parts += self.buffer.getvalue()
        if final:
            self.fs.uploads.append(self.path)
            self.fs.objects[self.path] = self.parts

    def _fetch_range(self, start: int, end: int) -> bytes:
        return bytes(self.fs.objects[self.path][start:end])


class TestFsspecOfObjects(FsspecContract):
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

    def test_what_is_given_up_is_not_uploaded_even_by_the_garbage_collector(
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

    def test_a_file_whose_age_nobody_knows_is_new(
        self, file_system: FileSystem, directory: str
    ) -> None:
        self.put(f"{directory}/x", b"1")
        before_ms = time.time_ns() // 1_000_000
        [entry] = file_system.list(directory)
        assert before_ms <= entry.modified_ms <= time.time_ns() // 1_000_000


class TestLostConnections:
    @pytest.fixture
    def file_system(self) -> FileSystem:
        return fsspec_file_system("sftp")

    @pytest.fixture
    def retrying(self, file_system: FileSystem, server: SftpServer) -> RetryingFileSystem:
        """Repeats, and starts the server instead of waiting."""

        class Starting(ManualClock):
            def sleep(self, seconds: float, /) -> None:
                super().sleep(seconds)
                if not server.is_running:
                    server.start()

        return RetryingFileSystem(file_system, RetryPolicy(), clock=Starting())

    def test_a_server_that_was_started_anew_is_connected_to_anew(
        self, retrying: RetryingFileSystem, server: SftpServer, sftp_directory: str
    ) -> None:
        write(retrying, f"{sftp_directory}/x", b"1")
        server.stop()
        server.start()
        [entry] = retrying.list(sftp_directory)
        assert (entry.uri, entry.size) == (f"{sftp_directory}/x", 1)
        assert (server.logins, retrying.retries) == (2, {"list": 1})

    def test_a_call_is_repeated_until_the_server_is_back(
        self, retrying: RetryingFileSystem, server: SftpServer, sftp_directory: str
    ) -> None:
        server.stop()
        retrying.prepare_directory(f"{sftp_directory}/a/b")
        assert server.path_of(f"{sftp_directory}/a/b").is_dir()

    def test_reading_goes_on_where_the_connection_was_lost(
        self, retrying: RetryingFileSystem, server: SftpServer, sftp_directory: str
    ) -> None:
        data = secrets.token_bytes(200_000)
        server.path_of(f"{sftp_directory}/x").write_bytes(data)
        with retrying.open(f"{sftp_directory}/x") as stream:
            begin = stream.read(100_000)
            server.stop()
            assert begin + stream.read() == data

    def test_an_answer_that_says_no_leaves_the_connection_as_it_is(
        self, file_system: FileSystem, server: SftpServer, sftp_directory: str
    ) -> None:
        def fail(call: str) -> None:
            if call == "remove":
                raise OSError(errno.EIO, "disk is broken")

        server.on_call = fail
        server.path_of(f"{sftp_directory}/x").write_bytes(b"1")
        stream = file_system.create(f"{sftp_directory}/y")
        with pytest.raises(StorageUnavailableError):
            file_system.delete([f"{sftp_directory}/x"])
        stream.commit()
        assert server.logins == 1

    def test_every_file_is_tried_before_the_first_failure_is_raised(
        self, file_system: FileSystem, server: SftpServer, sftp_directory: str
    ) -> None:
        removed = []

        def drop_at_the_first(call: str) -> None:
            removed.append(call)
            if len(removed) == 1:
                server.drop_connections()

        files = [f"{sftp_directory}/{name}" for name in "abc"]
        for file in files:
            server.path_of(file).write_bytes(b"1")
        server.on_call = drop_at_the_first
        with pytest.raises(StorageUnavailableError) as caught:
            file_system.delete(files)
        assert caught.value.location == files[0]
        assert not server.path_of(files[1]).exists()
        assert not server.path_of(files[2]).exists()

    def test_a_file_whose_connection_was_lost_leaves_nothing(
        self, file_system: FileSystem, server: SftpServer, sftp_directory: str
    ) -> None:
        writes = []

        def drop_at_the_third(call: str) -> None:
            writes.append(call)
            if len(writes) == 3:
                server.drop_connections()

        server.on_call = drop_at_the_third
        stream = file_system.create(f"{sftp_directory}/x")
        with pytest.raises(StorageUnavailableError):
            stream.write(bytes(1 << 20))
        [hidden] = files_below(server.path_of(sftp_directory))
        assert hidden.endswith(".inprogress")
        stream.abort()
        assert files_below(server.path_of(sftp_directory)) == {}

    def test_a_stream_is_given_up_in_silence_while_the_server_is_away(
        self, file_system: FileSystem, server: SftpServer, sftp_directory: str
    ) -> None:
        stream = file_system.create(f"{sftp_directory}/x")
        stream.write(b"1")
        server.stop()
        stream.abort()
        server.start()
        assert f"{sftp_directory}/x" not in {
            entry.uri for entry in file_system.list(sftp_directory)
        }

    def test_a_connection_lost_before_the_rename_leaves_nothing(
        self, file_system: FileSystem, server: SftpServer, sftp_directory: str
    ) -> None:
        def drop(call: str) -> None:
            if call == "rename":
                server.drop_connections()
                raise OSError(errno.EIO, "never happened")

        server.on_call = drop
        with pytest.raises(StorageUnavailableError):
            write(file_system, f"{sftp_directory}/x", b"1")
        assert files_below(server.path_of(sftp_directory)) == {}

    def test_a_rename_whose_answer_was_lost_is_a_commit(
        self, file_system: FileSystem, server: SftpServer, sftp_directory: str
    ) -> None:
        def drop(call: str) -> None:
            if call == "renamed":
                server.drop_connections()

        server.on_call = drop
        write(file_system, f"{sftp_directory}/x", b"1")
        assert files_below(server.path_of(sftp_directory)) == {"x": b"1"}

    def test_nobody_knows_the_outcome_of_a_rename_before_which_the_server_went_away(
        self,
        file_system: FileSystem,
        server: SftpServer,
        sftp_directory: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def rename(*_: object) -> None:
            server.stop()
            raise EOFError

        monkeypatch.setattr(paramiko.SFTPClient, "rename", rename)
        with pytest.raises(OutcomeUnknownError):
            write(file_system, f"{sftp_directory}/x", b"1")

    def test_nobody_knows_the_outcome_of_a_rename_after_which_the_server_went_away(
        self,
        file_system: FileSystem,
        server: SftpServer,
        sftp_directory: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        original = paramiko.SFTPClient.rename

        def rename(*arguments: object) -> None:
            original(*arguments)
            server.stop()

        monkeypatch.setattr(paramiko.SFTPClient, "rename", rename)
        with pytest.raises(OutcomeUnknownError):
            write(file_system, f"{sftp_directory}/x", b"1")
        assert files_below(server.path_of(sftp_directory)) == {"x": b"1"}

    def test_a_server_that_says_nothing_is_not_waited_for_forever(
        self, file_system: FileSystem, sftp_directory: str
    ) -> None:
        list(file_system.list(sftp_directory))
        [connection] = Sftp._cache.values()
        assert connection.ftp.get_channel().gettimeout() == 60

    def test_small_packets_are_sent_at_once(
        self, file_system: FileSystem, sftp_directory: str
    ) -> None:
        list(file_system.list(sftp_directory))
        [connection] = Sftp._cache.values()
        sock = connection.client.get_transport().sock
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    def test_what_timed_out_is_not_used_again(
        self, file_system: FileSystem, server: SftpServer, sftp_directory: str
    ) -> None:
        stream: Any = file_system.create(f"{sftp_directory}/x")
        stream._file.close()
        stream._file = Raising(TimeoutError())
        with pytest.raises(StorageUnavailableError):
            stream.write(b"1")
        stream.abort()
        assert server.logins == 2


class TestHostKeys:
    """Who gets the password."""

    @staticmethod
    def look(server: SftpServer) -> None:
        list(fsspec_file_system("sftp").list(f"{server.uri}/x"))

    def test_a_known_server_gets_it_once(self, server: SftpServer) -> None:
        self.look(server)
        self.look(server)
        assert server.passwords == [PASSWORD]

    def test_its_name_may_be_hashed(self, server: SftpServer, known_hosts: Path) -> None:
        name, key = server.known_host.split(" ", 1)
        known_hosts.write_text(f"{paramiko.HostKeys.hash_host(name)} {key}")
        self.look(server)
        assert server.logins == 1

    @pytest.mark.parametrize("has_file", [True, False])
    def test_an_unknown_one_does_not(
        self, server: SftpServer, known_hosts: Path, *, has_file: bool
    ) -> None:
        known_hosts.write_text("# nobody")
        if not has_file:
            known_hosts.unlink()
        with pytest.raises(InvalidRequestError, match=f"`ssh -p {server.port} 127.0.0.1`"):
            self.look(server)
        assert server.passwords == []

    def test_lines_of_other_kinds_are_passed_over(
        self, server: SftpServer, known_hosts: Path
    ) -> None:
        key = server.known_host.split(" ", 1)[1]
        others = [
            "# of the company: 2020",
            "",
            "\u00fc",
            f"@cert-authority *.example.com {key}",
            f"@revoked * {key}",
            f"example.com {key[:-30]}",
            "example.com ssh-new AAAA",
        ]
        known_hosts.write_text("\n".join(others))
        with pytest.raises(InvalidRequestError, match="nobody here knows"):
            self.look(server)
        known_hosts.write_text("\n".join([*others, server.known_host, *others]))
        self.look(server)
        assert server.passwords == [PASSWORD]

    def test_one_whose_key_has_changed_does_not(self, server: SftpServer) -> None:
        server.change_key()
        with pytest.raises(InvalidRequestError, match="another host key"):
            self.look(server)
        assert server.passwords == []

    def test_one_whose_key_changes_later_does_not_get_it_again(self, server: SftpServer) -> None:
        self.look(server)
        server.change_key()
        with pytest.raises(StorageUnavailableError):  # the old connection
            self.look(server)
        with pytest.raises(InvalidRequestError, match="another host key"):
            self.look(server)
        assert server.passwords == [PASSWORD]

    @pytest.mark.parametrize(
        "policy", ["auto_add", paramiko.AutoAddPolicy, paramiko.AutoAddPolicy()]
    )
    def test_fsspecs_own_setting_comes_first(
        self, server: SftpServer, known_hosts: Path, policy: object
    ) -> None:
        known_hosts.unlink()
        conf["sftp"]["host_key_policy"] = policy
        self.look(server)
        self.look(server)
        assert server.logins == 1

    def test_a_policy_of_ones_own_is_asked_about_known_servers_too(
        self, server: SftpServer
    ) -> None:
        conf["sftp"]["host_key_policy"] = paramiko.RejectPolicy
        with pytest.raises(StorageUnavailableError):
            self.look(server)
        assert server.passwords == []

    def test_a_policy_that_does_not_exist_is_named(self, server: SftpServer) -> None:
        conf["sftp"]["host_key_policy"] = "ask"
        with pytest.raises(InvalidRequestError, match="no host_key_policy 'ask'"):
            self.look(server)
        assert server.passwords == []

    @pytest.mark.parametrize("is_known", [True, False])
    def test_fsspecs_reject_is_what_happens_anyway(
        self, server: SftpServer, known_hosts: Path, *, is_known: bool
    ) -> None:
        conf["sftp"]["host_key_policy"] = "reject"
        if is_known:
            self.look(server)
        else:
            known_hosts.unlink()
            with pytest.raises(InvalidRequestError, match="nobody here knows"):
                self.look(server)
        assert server.logins == is_known


class TestRenames:
    """What each kind of failed rename means, on a store whose renames are its own."""

    @pytest.fixture
    def file_system(self) -> FileSystem:
        return fsspec_file_system("file")

    @pytest.fixture
    def renaming(
        self, tmp_path: Path, file_system: FileSystem, monkeypatch: pytest.MonkeyPatch
    ) -> Callable[[Callable[[Path, Path], object]], dict[str, bytes]]:
        """Commits a file of b"whole" with another rename."""

        def commit(rename: Callable[[Path, Path], object]) -> dict[str, bytes]:
            def mv(_: object, old: str, new: str) -> None:
                rename(Path(old), Path(new))

            monkeypatch.setattr(LocalFileSystem, "mv", mv)
            try:
                write(file_system, f"file://{tmp_path}/x", b"whole")
            finally:
                self.left = files_below(tmp_path)
            return self.left

        return commit

    def test_one_that_failed_after_its_effect_is_a_commit(self, renaming: Any) -> None:
        def rename(old: Path, new: Path) -> None:
            old.rename(new)
            raise OSError("lost")

        assert renaming(rename) == {"x": b"whole"}

    def test_one_that_failed_before_its_effect_leaves_nothing(self, renaming: Any) -> None:
        def rename(old: Path, new: Path) -> None:
            raise OSError("lost")

        with pytest.raises(StorageUnavailableError):
            renaming(rename)
        assert self.left == {}

    def test_one_that_is_still_under_way_can_not_happen_after_all(
        self, renaming: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        under_way = []

        def rename(old: Path, new: Path) -> None:
            under_way.append((old, new))
            raise OSError("lost")

        original = LocalFileSystem.info

        def info(store: object, path: Any, **options: object) -> object:
            if str(path).endswith("/x"):
                while under_way:
                    old, new = under_way.pop()
                    with suppress(FileNotFoundError):
                        old.rename(new)
            return original(store, path, **options)

        monkeypatch.setattr(LocalFileSystem, "info", info)
        with pytest.raises(StorageUnavailableError):
            renaming(rename)
        assert self.left == {}

    def test_one_that_did_nothing_in_silence_leaves_nothing(self, renaming: Any) -> None:
        with pytest.raises(StorageUnavailableError, match="did not rename"):
            renaming(lambda old, new: None)
        assert self.left == {}

    def test_one_that_met_the_file_of_somebody_else_is_a_conflict(self, renaming: Any) -> None:
        def rename(old: Path, new: Path) -> None:
            new.write_bytes(b"other")
            raise FileExistsError

        with pytest.raises(CheckpointConflictError):
            renaming(rename)
        assert self.left == {"x": b"other"}

    @pytest.mark.parametrize("found", [b"whole", b"other size"])
    def test_a_copy_that_is_there_after_a_failure_may_be_anybodys(
        self, renaming: Any, found: bytes
    ) -> None:
        def rename(old: Path, new: Path) -> None:
            new.write_bytes(found)
            raise OSError("lost")

        with pytest.raises(OutcomeUnknownError):
            renaming(rename)
        assert self.left == {"x": found}

    def test_a_file_of_another_length_under_the_name_is_not_ours(self, renaming: Any) -> None:
        def rename(old: Path, new: Path) -> None:
            old.rename(new)
            new.write_bytes(b"somebody else")

        with pytest.raises(OutcomeUnknownError):
            renaming(rename)
        assert self.left == {"x": b"somebody else"}

    def test_a_directory_deleted_meanwhile_is_not_found(
        self, renaming: Any, tmp_path: Path
    ) -> None:
        def rename(old: Path, new: Path) -> None:
            old.unlink()
            tmp_path.rmdir()
            old.rename(new)

        with pytest.raises(CheckpointNotFoundError):
            renaming(rename)
        assert not tmp_path.exists()


class TestRefusals:
    def test_fsspec_is_imported_only_when_it_is_needed(self) -> None:
        source = "import sys, holdfast.locations; print('fsspec' in sys.modules)"
        assert output_of(source) == "False"

    def test_without_fsspec_the_message_says_how_to_install_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "fsspec", None)
        with pytest.raises(InvalidRequestError, match=r"pip install 'holdfast\[fsspec\]'"):
            file_system_for("nosuch://host/x")

    def test_a_protocol_that_nobody_knows_is_named(self) -> None:
        with pytest.raises(InvalidRequestError, match="fsspec knows no nosuch"):
            file_system_for("nosuch://host/x")

    def test_a_library_that_is_missing_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        known = {"class": "not_there.FileSystem", "err": 'needs "not_there" to be installed'}
        monkeypatch.setitem(known_implementations, "lacking", known)
        with pytest.raises(InvalidRequestError, match=r'lacking; install it .*"not_there"'):
            fsspec_file_system("lacking")

    def test_a_store_that_makes_no_directories_is_refused(self) -> None:
        class NoDirectories(ObjectStore):
            protocol = "flat"

        fsspec.register_implementation("flat", NoDirectories)
        with pytest.raises(InvalidRequestError, match="does not make directories"):
            fsspec_file_system("flat").prepare_directory("flat://bucket/x")

    def test_a_uri_without_a_host_is_refused(self) -> None:
        with pytest.raises(InvalidRequestError):
            fsspec_file_system("sftp").prepare_directory("sftp:///x")

    @pytest.mark.parametrize("host", ["[::1]", "[::1]:2222", "me@[::1]"])
    def test_an_ipv6_address_is_refused(self, host: str) -> None:
        with pytest.raises(InvalidRequestError, match="use a host name"):
            fsspec_file_system("sftp").prepare_directory(f"sftp://{host}/x")

    @pytest.mark.parametrize("unwanted", ["password", "key"])
    def test_who_is_not_let_in_does_not_try_again_and_no_secret_is_told(
        self, server: SftpServer, monkeypatch: pytest.MonkeyPatch, unwanted: str
    ) -> None:
        secret = secrets.token_hex()
        login = {"allow_agent": False, "look_for_keys": False}
        if unwanted == "password":
            monkeypatch.setitem(conf, "sftp", {**login, "password": secret})
        else:
            monkeypatch.setitem(conf, "sftp", {**login, "pkey": paramiko.RSAKey.generate(2048)})
        with pytest.raises(InvalidRequestError, match="not let in") as caught:
            list(file_system_for(server.uri).list(f"{server.uri}/x"))
        assert_without(secret, caught.value)

    def test_who_has_no_credentials_does_not_try_again(
        self, server: SftpServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(conf, "sftp", {"allow_agent": False, "look_for_keys": False})
        with pytest.raises(InvalidRequestError, match="not let in"):
            list(file_system_for(server.uri).list(f"{server.uri}/x"))

    def test_a_server_that_is_not_there_is_unavailable_and_no_secret_is_told(
        self, server: SftpServer
    ) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            uri = f"sftp://holdfast@127.0.0.1:{taken.getsockname()[1]}/x"
            with pytest.raises(StorageUnavailableError) as caught:
                list(fsspec_file_system("sftp").list(uri))
        assert_without(PASSWORD, caught.value)

    def test_a_wrong_setting_is_named_and_no_secret_is_told(
        self, server: SftpServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(conf, "sftp", {"password": PASSWORD, "no_such_setting": 1})
        with pytest.raises(InvalidRequestError, match="configuration") as caught:
            list(fsspec_file_system("sftp").list(f"{server.uri}/x"))
        assert "no_such_setting" in str(caught.value.__cause__)
        assert_without(PASSWORD, caught.value)

    def test_what_permissions_forbid_is_refused(
        self, server: SftpServer, sftp_directory: str
    ) -> None:
        def forbid(call: str) -> None:
            if call == "rename":
                raise PermissionError(errno.EACCES, "no")

        server.on_call = forbid
        with pytest.raises(InvalidRequestError):
            write(fsspec_file_system("sftp"), f"{sftp_directory}/x", b"1")
        assert files_below(server.path_of(sftp_directory)) == {}


def assert_without(secret: str, error: CheckpointError) -> None:
    told = [str(error), repr(error), *traceback.format_exception(error)]
    assert secret not in "".join(told)


@pytest.mark.parametrize("scheme", ["fsspec+file", "sftp"])
class TestDirectories:
    @pytest.fixture
    def place(self, scheme: str, server: SftpServer, sftp_directory: str) -> tuple[str, Path]:
        """The same directory as a URI and as a path."""
        path = server.path_of(sftp_directory)
        return (sftp_directory if scheme == "sftp" else f"{scheme}://{path}"), path

    def test_only_the_owner_may_look_into_them(self, place: tuple[str, Path]) -> None:
        uri, path = place
        file_system_for(uri).prepare_directory(f"{uri}/a/b")
        for below in (path / "a", path / "a/b"):
            assert stat.S_IMODE(below.stat().st_mode) == 0o700

    def test_one_that_somebody_else_makes_meanwhile_will_do(
        self, place: tuple[str, Path], scheme: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        implementation = SFTPFileSystem if scheme == "sftp" else LocalFileSystem
        mkdir = implementation.mkdir

        def overtaken(*arguments: object, **options: object) -> None:
            for _ in range(2):
                mkdir(*arguments, **options)

        monkeypatch.setattr(implementation, "mkdir", overtaken)
        uri, path = place
        file_system_for(uri).prepare_directory(f"{uri}/a/b")
        assert (path / "a/b").is_dir()

    def test_a_file_is_not_deleted_as_a_tree(self, place: tuple[str, Path]) -> None:
        uri, path = place
        (path / "x").write_bytes(b"1")
        with pytest.raises(InvalidRequestError):
            file_system_for(uri).delete_tree(f"{uri}/x")
        assert files_below(path) == {"x": b"1"}

    def test_links_are_deleted_but_not_followed(self, place: tuple[str, Path]) -> None:
        uri, path = place
        (path / "kept").mkdir()
        (path / "kept/x").write_bytes(b"1")
        (path / "tree").mkdir()
        (path / "tree/inner").symlink_to(path / "kept")
        (path / "link").symlink_to(path / "kept")
        for name in ("tree", "link"):
            file_system_for(uri).delete_tree(f"{uri}/{name}")
        assert files_below(path) == {"kept/x": b"1"}
        assert [entry.name for entry in path.iterdir()] == ["kept"]

    def test_links_are_listed_as_such(self, place: tuple[str, Path]) -> None:
        uri, path = place
        (path / "x").write_bytes(b"1")
        (path / "link").symlink_to(path / "x")
        found = {entry.uri: entry.is_link for entry in file_system_for(uri).list(uri)}
        assert found == {f"{uri}/x": False, f"{uri}/link": True}

    def test_a_directory_is_not_deleted_as_a_file(self, place: tuple[str, Path]) -> None:
        uri, path = place
        (path / "empty").mkdir()
        with pytest.raises(InvalidRequestError):
            file_system_for(uri).delete([f"{uri}/empty"])
        assert (path / "empty").is_dir()


def test_abort_does_not_wait_for_a_writer_that_is_stuck(tmp_path: Path) -> None:
    stuck, go_on = threading.Event(), threading.Event()

    class Stuck:
        def __init__(self, inner: Any) -> None:
            self.close = inner.close

        def write(self, _: bytes) -> None:
            stuck.set()
            assert go_on.wait(HANGS_S)

    def create() -> Any:
        stream: Any = fsspec_file_system("file").create(f"file://{tmp_path}/x")
        stream._file = Stuck(stream._file)
        return stream

    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(create).result()
        writer = pool.submit(stream.write, b"1")
        assert stuck.wait(HANGS_S)
        stream.abort()
        assert list(tmp_path.iterdir()) == []
        go_on.set()
        writer.result()


def test_a_directory_with_something_in_it_is_kept_even_if_the_stores_rmdir_is_recursive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalFileSystem, "rmdir", lambda _, path: shutil.rmtree(path))
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_bytes(b"1")
    fsspec_file_system("file").delete_empty_directory(f"file://{tmp_path}/full")
    assert files_below(tmp_path) == {"full/x": b"1"}


def test_a_file_whose_opening_failed_after_its_effect_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_and_fail(_: object, path: str, *__: object, **___: object) -> None:
        Path(path).touch()
        raise OSError("lost")

    monkeypatch.setattr(LocalFileSystem, "_open", open_and_fail)
    with pytest.raises(StorageUnavailableError):
        fsspec_file_system("file").create(f"file://{tmp_path}/x")
    assert list(tmp_path.iterdir()) == []


def test_no_setting_of_fsspec_makes_a_writer_bring_its_directory_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(conf, "file", {"auto_mkdir": True})
    with pytest.raises(CheckpointNotFoundError):
        fsspec_file_system("file").create(f"file://{tmp_path}/missing/x")
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
def test_a_time_is_understood_in_every_form_that_a_store_gives(moment: object) -> None:
    assert milliseconds(moment) == 1_700_000_000_000


@pytest.mark.parametrize("moment", [None, "", "yesterday", "99999999999999", b"1"])
def test_a_time_that_is_none_is_not_guessed(moment: object) -> None:
    assert milliseconds(moment) is None


def test_seeking_before_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12")
    with fsspec_file_system("file").open(f"file://{tmp_path}/x") as stream:
        with pytest.raises(InvalidRequestError):
            stream.seek(-3, io.SEEK_END)


@of_many_threads
def test_a_fork_does_not_take_its_parents_file_away(tmp_path: Path) -> None:
    uri = f"fsspec+file://{tmp_path}/x"
    stream = file_system_for(uri).create(uri)
    stream.write(b"1")
    stream.sync()
    assert forked(stream.abort) == 0
    stream.commit()
    assert (tmp_path / "x").read_bytes() == b"1"
