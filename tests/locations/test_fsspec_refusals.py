"""Refusals of fsspec's file systems: their errors reveal no secret."""

import errno
import io
import secrets
import socket
import sys
import traceback
from pathlib import Path

import fsspec
import paramiko
import pytest
from contracts.errors import of_kind
from contracts.files import write
from contracts.fsspec_stores import (
    PASSWORD,
    ObjectStore,
    contents_below,
    known_hosts,
    module_server,
    server,
    sftp_directory,
)
from contracts.processes import output_of
from fsspec.config import conf
from fsspec.registry import known_implementations
from servers.sftp import SftpServer

from holdfast.errors import (
    CheckpointError,
    InvalidRequestError,
    StorageUnavailableError,
)
from holdfast.locations.adapters import (
    file_system_for,
)
from holdfast.locations.file_systems import fsspec_file_system

__all__ = ["known_hosts", "module_server", "server", "sftp_directory"]


class TestRefusals:
    def test_fsspec_is_imported_only_when_it_is_needed(self) -> None:
        source = "import sys, holdfast.locations; print('fsspec' in sys.modules)"
        assert output_of(source) == "False"

    def test_missing_fsspec_is_reported_with_the_command(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "fsspec", None)
        with pytest.raises(InvalidRequestError, match=r"pip install 'holdfast\[fsspec\]'"):
            file_system_for("nosuch://host/x")

    def test_unknown_protocol_is_named(self) -> None:
        with pytest.raises(InvalidRequestError, match="fsspec does not support nosuch"):
            file_system_for("nosuch://host/x")

    def test_missing_library_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        known = {"class": "not_there.FileSystem", "err": 'needs "not_there" to be installed'}
        monkeypatch.setitem(known_implementations, "lacking", known)
        with pytest.raises(InvalidRequestError, match=r'lacking needs a library .*"not_there"'):
            fsspec_file_system("lacking")

    def test_store_without_directories_is_refused(self) -> None:
        class NoDirectories(ObjectStore):
            protocol = "flat"

        fsspec.register_implementation("flat", NoDirectories)
        with pytest.raises(InvalidRequestError, match="can't create directories"):
            fsspec_file_system("flat").prepare_directory("flat://bucket/x")

    def test_uri_without_a_host_is_refused(self) -> None:
        with pytest.raises(InvalidRequestError):
            fsspec_file_system("sftp").prepare_directory("sftp:///x")

    @pytest.mark.parametrize("host", ["[::1]", "[::1]:2222", "me@[::1]"])
    def test_ipv6_address_is_refused(self, host: str) -> None:
        with pytest.raises(InvalidRequestError, match="use a host name"):
            fsspec_file_system("sftp").prepare_directory(f"sftp://{host}/x")

    @pytest.mark.parametrize("unwanted", ["password", "key"])
    def test_rejected_login_is_not_retried_and_reveals_no_secret(
        self, server: SftpServer, monkeypatch: pytest.MonkeyPatch, unwanted: str
    ) -> None:
        secret = secrets.token_hex()
        login = {"allow_agent": False, "look_for_keys": False}
        if unwanted == "password":
            monkeypatch.setitem(conf, "sftp", {**login, "password": secret})
        else:
            monkeypatch.setitem(conf, "sftp", {**login, "pkey": paramiko.RSAKey.generate(2048)})
        with pytest.raises(InvalidRequestError, check=of_kind("refused")) as caught:
            list(file_system_for(server.uri).list(f"{server.uri}/x"))
        assert_without(secret, caught.value)

    def test_missing_credentials_are_not_retried(
        self, server: SftpServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(conf, "sftp", {"allow_agent": False, "look_for_keys": False})
        with pytest.raises(InvalidRequestError, check=of_kind("refused")):
            list(file_system_for(server.uri).list(f"{server.uri}/x"))

    def test_missing_server_is_unavailable_and_reveals_no_secret(self, server: SftpServer) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            uri = f"sftp://holdfast@127.0.0.1:{listener.getsockname()[1]}/x"
            with pytest.raises(StorageUnavailableError) as caught:
                list(fsspec_file_system("sftp").list(uri))
        assert_without(PASSWORD, caught.value)

    def test_wrong_setting_is_named_and_reveals_no_secret(
        self, server: SftpServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(conf, "sftp", {"password": PASSWORD, "no_such_setting": 1})
        with pytest.raises(InvalidRequestError, match="configuration") as caught:
            list(fsspec_file_system("sftp").list(f"{server.uri}/x"))
        assert "no_such_setting" in str(caught.value.__cause__)
        assert_without(PASSWORD, caught.value)

    def test_operation_without_permission_is_refused(
        self, server: SftpServer, sftp_directory: str
    ) -> None:
        def forbid(call: str) -> None:
            if call == "rename":
                raise PermissionError(errno.EACCES, "no")

        server.on_call = forbid
        with pytest.raises(InvalidRequestError, check=of_kind("refused")):
            write(fsspec_file_system("sftp"), f"{sftp_directory}/x", b"1")
        assert contents_below(server.path_of(sftp_directory)) == {}


def assert_without(secret: str, error: CheckpointError) -> None:
    texts = [str(error), repr(error), *traceback.format_exception(error)]
    assert secret not in "".join(texts)


def test_seeking_before_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12")
    with fsspec_file_system("file").open(f"file://{tmp_path}/x") as stream:
        with pytest.raises(InvalidRequestError):
            stream.seek(-3, io.SEEK_END)
