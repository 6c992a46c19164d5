"""Stores accessed through fsspec: an SFTP server, and an object store with failures on demand."""

import logging
import secrets
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.config import conf
from servers.sftp import SftpServer

from holdfast.locations.file_systems.sftp import Sftp

PASSWORD = secrets.token_hex()


@pytest.fixture(scope="module")
def module_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SftpServer]:
    # Both ends log broken connections.
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
    """The empty `known_hosts` file of a new home directory."""
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
    """A server without faults, and a client configuration that it accepts."""
    known_hosts.write_text(module_server.known_host)
    login = {"password": PASSWORD, "allow_agent": False, "look_for_keys": False}
    monkeypatch.setitem(conf, "sftp", login)
    module_server.on_call = lambda call: None
    module_server.logins = 0
    module_server.passwords.clear()
    yield module_server
    if not module_server.is_running:
        module_server.start()
    for connection in list(Sftp._cache.values()):  # noqa: SLF001  # fsspec has no public access to them
        connection.client.close()
    Sftp.clear_instance_cache()


@pytest.fixture
def sftp_directory(server: SftpServer) -> str:
    """URI of an empty directory on the server."""
    path = server.root / secrets.token_hex()
    path.mkdir()
    return f"{server.uri}/{path.name}"


def contents_below(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def raising(error: Exception) -> Callable[..., None]:
    """Return a method that fails."""

    def fail(*_: object) -> None:
        raise error

    return fail


@pytest.fixture
def opened_files(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The files that fsspec has opened, in order; tests make them fail."""
    files: list[Any] = []
    open_file = fsspec.AbstractFileSystem.open

    def record(*arguments: Any, **options: Any) -> Any:
        files.append(open_file(*arguments, **options))
        return files[-1]

    monkeypatch.setattr(fsspec.AbstractFileSystem, "open", record)
    return files


class ObjectStore(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Like the cloud stores of fsspec: no directories, cached listings, buffered files."""

    protocol = "oci"
    objects: ClassVar[dict[str, bytes]] = {}
    uploads: ClassVar[list[str]] = []

    def ls(self, path: str, detail: bool = True, **_: object) -> list[Any]:  # noqa: FBT001, FBT002
        path = self._strip_protocol(path)
        cached = self._ls_from_cache(path)
        if cached is not None:
            return list(cached)
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
        raise OSError("object stores have no directories")

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
    """A file that is uploaded as a whole when it is closed."""

    def _initiate_upload(self) -> None:
        self.parts = b""

    def _upload_chunk(self, final: bool = False) -> None:  # noqa: FBT001, FBT002
        self.parts += self.buffer.getvalue()
        if final:
            self.fs.uploads.append(self.path)
            self.fs.objects[self.path] = self.parts

    def _fetch_range(self, start: int, end: int) -> bytes:
        return bytes(self.fs.objects[self.path][start:end])
