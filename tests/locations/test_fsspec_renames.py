"""Renames through fsspec that fail before or after their effect."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from contracts.files import write
from contracts.fsspec_stores import contents_below
from fsspec.implementations.local import LocalFileSystem

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointNotFoundError,
    OutcomeUnknownError,
    StorageUnavailableError,
)
from holdfast.locations.adapters import FileSystem
from holdfast.locations.file_systems import fsspec_file_system


class TestRenames:
    """The outcome of each type of failed rename, on a store with its own renames."""

    @pytest.fixture
    def file_system(self) -> FileSystem:
        return fsspec_file_system("file")

    @pytest.fixture
    def renaming(
        self, tmp_path: Path, file_system: FileSystem, monkeypatch: pytest.MonkeyPatch
    ) -> Callable[[Callable[[Path, Path], object]], dict[str, bytes]]:
        """Commits a file of b"whole" with a given rename."""

        def commit(rename: Callable[[Path, Path], object]) -> dict[str, bytes]:
            def mv(_: object, old: str, new: str) -> None:
                rename(Path(old), Path(new))

            monkeypatch.setattr(LocalFileSystem, "mv", mv)
            try:
                write(file_system, f"file://{tmp_path}/x", b"whole")
            finally:
                self.left = contents_below(tmp_path)
            return self.left

        return commit

    def test_rename_failing_after_its_effect_is_a_commit(self, renaming: Any) -> None:
        def rename(old: Path, new: Path) -> None:
            old.rename(new)
            raise OSError("lost")

        assert renaming(rename) == {"x": b"whole"}

    def test_rename_failing_before_its_effect_leaves_nothing(self, renaming: Any) -> None:
        def rename(old: Path, new: Path) -> None:
            raise OSError("lost")

        with pytest.raises(StorageUnavailableError):
            renaming(rename)
        assert self.left == {}

    def test_rename_in_progress_can_not_succeed_later(
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

    def test_rename_without_an_effect_leaves_nothing(self, renaming: Any) -> None:
        with pytest.raises(StorageUnavailableError, match="did not rename"):
            renaming(lambda old, new: None)
        assert self.left == {}

    def test_rename_onto_the_file_of_another_writer_is_a_conflict(self, renaming: Any) -> None:
        def rename(old: Path, new: Path) -> None:
            new.write_bytes(b"other")
            raise FileExistsError

        with pytest.raises(CheckpointConflictError):
            renaming(rename)
        assert self.left == {"x": b"other"}

    @pytest.mark.parametrize("content", [b"whole", b"other size"])
    def test_copy_after_a_failure_has_an_unknown_owner(self, renaming: Any, content: bytes) -> None:
        def rename(old: Path, new: Path) -> None:
            new.write_bytes(content)
            raise OSError("lost")

        with pytest.raises(OutcomeUnknownError):
            renaming(rename)
        assert self.left == {"x": content}

    def test_file_of_another_length_under_the_name_is_not_ours(self, renaming: Any) -> None:
        def rename(old: Path, new: Path) -> None:
            old.rename(new)
            new.write_bytes(b"another writer")

        with pytest.raises(OutcomeUnknownError):
            renaming(rename)
        assert self.left == {"x": b"another writer"}

    def test_directory_deleted_during_the_write_is_not_found(
        self, renaming: Any, tmp_path: Path
    ) -> None:
        def rename(old: Path, new: Path) -> None:
            old.unlink()
            tmp_path.rmdir()
            old.rename(new)

        with pytest.raises(CheckpointNotFoundError):
            renaming(rename)
        assert not tmp_path.exists()
