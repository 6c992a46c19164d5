import logging
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.sftp import SftpServer

from holdfast.locations import FileSystem
from holdfast.locations.file_systems._fsspec import FsspecFileSystem, fsspec_file_system
from holdfast.testing import FileSystemContract

fsspec = pytest.importorskip("fsspec")
paramiko = pytest.importorskip("paramiko")

from fsspec.config import conf  # noqa: E402
from fsspec.implementations.memory import MemoryFileSystem  # noqa: E402
from fsspec.implementations.sftp import SFTPFileSystem  # noqa: E402

PASSWORD = secrets.token_hex()


@pytest.fixture(scope="module")
def quiet() -> Iterator[None]:
    """Connections that break are logged by both ends, threads that serve them included."""
    loggers = [logging.getLogger(name) for name in ("paramiko", "asyncssh")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture(scope="module")
def module_server(quiet: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SftpServer]:
    with SftpServer(tmp_path_factory.mktemp("sftp"), PASSWORD) as server:
        yield server


@pytest.fixture
def server(module_server: SftpServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[SftpServer]:
    """A server that does nothing special yet, and what clients need to be let in."""
    login = {"password": PASSWORD, "allow_agent": False, "look_for_keys": False}
    monkeypatch.setitem(conf, "sftp", login)
    module_server.on_call = lambda call: None
    module_server.logins = 0
    yield module_server
    for connection in list(SFTPFileSystem._cache.values()):
        connection.client.close()
    SFTPFileSystem.clear_instance_cache()


def files_below(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


class TestFsspecOfLocalFiles(FileSystemContract):
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


class TestFsspecOfMemory(FileSystemContract):
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


class TestFsspecOfSftp(FileSystemContract):
    @pytest.fixture
    def file_system(self) -> FileSystem:
        return fsspec_file_system("sftp")

    @pytest.fixture
    def directory(self, server: SftpServer) -> str:
        path = server.root / secrets.token_hex()
        path.mkdir()
        return f"{server.uri}/{path.name}"

    @pytest.fixture(autouse=True)
    def _root(self, server: SftpServer) -> None:
        self.server = server

    def files(self, directory: str) -> dict[str, bytes]:
        return files_below(self.path(directory))

    def put(self, uri: str, data: bytes) -> None:
        self.path(uri).write_bytes(data)

    def path(self, uri: str) -> Path:
        return self.server.root / uri.removeprefix(f"{self.server.uri}/")
