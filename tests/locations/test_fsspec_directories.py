"""Directories through fsspec: created, listed and deleted."""

import shutil
import stat
from pathlib import Path

import pytest
from contracts.fsspec_stores import (
    contents_below,
    known_hosts,
    module_server,
    server,
    sftp_directory,
)
from fsspec.config import conf
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.sftp import SFTPFileSystem
from servers.sftp import SftpServer

from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.adapters import file_system_for
from holdfast.locations.file_systems import fsspec_file_system

__all__ = ["known_hosts", "module_server", "server", "sftp_directory"]


@pytest.mark.parametrize("scheme", ["fsspec+file", "sftp"])
class TestDirectories:
    @pytest.fixture
    def place(self, scheme: str, server: SftpServer, sftp_directory: str) -> tuple[str, Path]:
        """The same directory as a URI and as a path."""
        path = server.path_of(sftp_directory)
        return (sftp_directory if scheme == "sftp" else f"{scheme}://{path}"), path

    def test_only_the_owner_may_read_files_and_directories(self, place: tuple[str, Path]) -> None:
        uri, path = place
        file_system_for(uri).prepare_directory(f"{uri}/a/b")
        for below in (path / "a", path / "a/b"):
            assert stat.S_IMODE(below.stat().st_mode) == 0o700

    def test_directory_created_concurrently_is_used(
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

    def test_file_is_not_deleted_as_a_tree(self, place: tuple[str, Path]) -> None:
        uri, path = place
        (path / "x").write_bytes(b"1")
        with pytest.raises(InvalidRequestError):
            file_system_for(uri).delete_tree(f"{uri}/x")
        assert contents_below(path) == {"x": b"1"}

    def test_links_are_deleted_but_not_followed(self, place: tuple[str, Path]) -> None:
        uri, path = place
        (path / "kept").mkdir()
        (path / "kept/x").write_bytes(b"1")
        (path / "tree").mkdir()
        (path / "tree/inner").symlink_to(path / "kept")
        (path / "link").symlink_to(path / "kept")
        for name in ("tree", "link"):
            file_system_for(uri).delete_tree(f"{uri}/{name}")
        assert contents_below(path) == {"kept/x": b"1"}
        assert [entry.name for entry in path.iterdir()] == ["kept"]

    def test_links_are_listed_as_such(self, place: tuple[str, Path]) -> None:
        uri, path = place
        (path / "x").write_bytes(b"1")
        (path / "link").symlink_to(path / "x")
        links = {entry.uri: entry.is_link for entry in file_system_for(uri).list(uri)}
        assert links == {f"{uri}/x": False, f"{uri}/link": True}

    def test_directory_is_not_deleted_as_a_file(self, place: tuple[str, Path]) -> None:
        uri, path = place
        (path / "empty").mkdir()
        with pytest.raises(InvalidRequestError):
            file_system_for(uri).delete([f"{uri}/empty"])
        assert (path / "empty").is_dir()


def test_directory_with_entries_survives_a_recursive_rmdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalFileSystem, "rmdir", lambda _, path: shutil.rmtree(path))
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_bytes(b"1")
    fsspec_file_system("file").delete_empty_directory(f"file://{tmp_path}/full")
    assert contents_below(tmp_path) == {"full/x": b"1"}


def test_no_setting_of_fsspec_makes_a_writer_bring_its_directory_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(conf, "file", {"auto_mkdir": True})
    with pytest.raises(CheckpointNotFoundError):
        fsspec_file_system("file").create(f"file://{tmp_path}/missing/x")
    assert list(tmp_path.iterdir()) == []
