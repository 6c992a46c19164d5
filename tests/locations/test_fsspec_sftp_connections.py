"""SFTP through fsspec: lost connections, and missing or silent servers."""

import errno
import secrets
import socket
from typing import Any

import paramiko
import pytest
from contracts.files import write
from contracts.fsspec_stores import (
    contents_below,
    known_hosts,
    module_server,
    opened_files,
    raising,
    server,
    sftp_directory,
)
from servers.sftp import SftpServer

from holdfast.errors import (
    OutcomeUnknownError,
    StorageUnavailableError,
)
from holdfast.locations.adapters import (
    FileSystem,
    RetryPolicy,
)
from holdfast.locations.file_systems import RetryingFileSystem, fsspec_file_system
from holdfast.locations.file_systems.sftp import Sftp
from holdfast.testing import ManualClock

__all__ = ["known_hosts", "module_server", "opened_files", "server", "sftp_directory"]


class TestLostConnections:
    @pytest.fixture
    def file_system(self) -> FileSystem:
        return fsspec_file_system("sftp")

    @pytest.fixture
    def retrying(self, file_system: FileSystem, server: SftpServer) -> RetryingFileSystem:
        """Retries, and starts the server instead of waiting."""

        class Starting(ManualClock):
            def sleep(self, seconds: float, /) -> None:
                super().sleep(seconds)
                if not server.is_running:
                    server.start()

        return RetryingFileSystem(file_system, RetryPolicy(), clock=Starting())

    def test_restarted_server_is_connected_to_again(
        self, retrying: RetryingFileSystem, server: SftpServer, sftp_directory: str
    ) -> None:
        write(retrying, f"{sftp_directory}/x", b"1")
        server.stop()
        server.start()
        [entry] = retrying.list(sftp_directory)
        assert (entry.uri, entry.size) == (f"{sftp_directory}/x", 1)
        assert (server.logins, retrying.retries) == (2, {"list": 1})

    def test_call_is_repeated_until_the_server_is_back(
        self, retrying: RetryingFileSystem, server: SftpServer, sftp_directory: str
    ) -> None:
        server.stop()
        retrying.prepare_directory(f"{sftp_directory}/a/b")
        assert server.path_of(f"{sftp_directory}/a/b").is_dir()

    def test_read_resumes_after_a_lost_connection(
        self, retrying: RetryingFileSystem, server: SftpServer, sftp_directory: str
    ) -> None:
        data = secrets.token_bytes(200_000)
        server.path_of(f"{sftp_directory}/x").write_bytes(data)
        with retrying.open(f"{sftp_directory}/x") as stream:
            begin = stream.read(100_000)
            server.stop()
            assert begin + stream.read() == data

    def test_refusal_keeps_the_connection(
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

    def test_file_of_a_lost_connection_leaves_nothing(
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
        [hidden] = contents_below(server.path_of(sftp_directory))
        assert hidden.endswith(".inprogress")
        stream.abort()
        assert contents_below(server.path_of(sftp_directory)) == {}

    def test_abort_without_a_server_is_silent(
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

    def test_connection_lost_before_the_rename_leaves_nothing(
        self, file_system: FileSystem, server: SftpServer, sftp_directory: str
    ) -> None:
        def drop(call: str) -> None:
            if call == "rename":
                server.drop_connections()
                raise OSError(errno.EIO, "never happened")

        server.on_call = drop
        with pytest.raises(StorageUnavailableError):
            write(file_system, f"{sftp_directory}/x", b"1")
        assert contents_below(server.path_of(sftp_directory)) == {}

    def test_rename_with_a_lost_answer_is_a_commit(
        self, file_system: FileSystem, server: SftpServer, sftp_directory: str
    ) -> None:
        def drop(call: str) -> None:
            if call == "renamed":
                server.drop_connections()

        server.on_call = drop
        write(file_system, f"{sftp_directory}/x", b"1")
        assert contents_below(server.path_of(sftp_directory)) == {"x": b"1"}

    def test_rename_after_the_server_vanished_is_unknown(
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

    def test_rename_before_the_server_vanished_is_unknown(
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
        assert contents_below(server.path_of(sftp_directory)) == {"x": b"1"}

    def test_silent_server_is_not_waited_for_forever(
        self, file_system: FileSystem, sftp_directory: str
    ) -> None:
        list(file_system.list(sftp_directory))
        connection = Sftp.current()
        assert connection.ftp.get_channel().gettimeout() == 60

    def test_small_packets_are_sent_at_once(
        self, file_system: FileSystem, sftp_directory: str
    ) -> None:
        list(file_system.list(sftp_directory))
        connection = Sftp.current()
        sock = connection.client.get_transport().sock
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    def test_connection_is_not_reused_after_a_timeout(
        self,
        file_system: FileSystem,
        server: SftpServer,
        sftp_directory: str,
        opened_files: list[Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        stream = file_system.create(f"{sftp_directory}/x")
        [file] = opened_files
        monkeypatch.setattr(file, "write", raising(TimeoutError()))
        with pytest.raises(StorageUnavailableError):
            stream.write(b"1")
        stream.abort()
        assert server.logins == 2
