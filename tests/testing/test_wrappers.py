"""Wrappers of file systems have no effect without faults, on any store."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from holdfast.errors import InvalidRequestError
from holdfast.locations.adapters import (
    ExclusiveFileSystem,
    FileSystem,
    file_system_for,
    register_file_system,
    unregister_file_system,
)
from holdfast.testing import (
    Counts,
    ExclusiveFileSystemContract,
    Faults,
    FileSystemContract,
    counting_file_system,
    faulty_file_system,
)

Wrapped = Callable[[str], AbstractContextManager[Faults | Counts]]

both_wrappers = pytest.mark.parametrize("wrapped", [faulty_file_system, counting_file_system])


def for_one_writer() -> FileSystem:
    """A local file system that can't publish."""
    return file_system_for("fsspec+file:///").inner


@pytest.fixture
def one_writer_directory(tmp_path: Path) -> Iterator[str]:
    register_file_system("one-writer", for_one_writer)
    yield f"one-writer://{tmp_path}"
    unregister_file_system("one-writer")


class OnLocalDisk(FileSystemContract):
    def files(self, directory: str) -> dict[str, bytes]:
        root = Path(directory.partition("://")[2])
        return {
            str(path.relative_to(root)): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file()
        }

    def put(self, uri: str, data: bytes) -> None:
        Path(uri.partition("://")[2]).write_bytes(data)


class Exclusive(OnLocalDisk, ExclusiveFileSystemContract):
    @pytest.fixture
    def file_system(self, directory: str) -> ExclusiveFileSystem:
        inner = file_system_for(directory).inner
        assert isinstance(inner, ExclusiveFileSystem)
        return inner


class TestFaultyFileSystem(Exclusive):
    @pytest.fixture
    def directory(self, local_directory: str) -> Iterator[str]:
        with faulty_file_system(local_directory) as faults:
            yield faults.directory


class TestCountingFileSystem(Exclusive):
    @pytest.fixture
    def directory(self, local_directory: str) -> Iterator[str]:
        with counting_file_system(local_directory) as counts:
            yield counts.directory


class SingleWriterContract(OnLocalDisk):
    @pytest.fixture
    def file_system(self, directory: str) -> FileSystem:
        return file_system_for(directory).inner

    def test_it_can_not_publish(self, file_system: FileSystem, directory: str) -> None:
        assert not hasattr(file_system, "publish")
        assert not isinstance(file_system, ExclusiveFileSystem)
        assert not isinstance(file_system_for(directory), ExclusiveFileSystem)


class TestFaultySingleWriterFileSystem(SingleWriterContract):
    @pytest.fixture
    def directory(self, one_writer_directory: str) -> Iterator[str]:
        with faulty_file_system(one_writer_directory) as faults:
            yield faults.directory


class TestCountingSingleWriterFileSystem(SingleWriterContract):
    @pytest.fixture
    def directory(self, one_writer_directory: str) -> Iterator[str]:
        with counting_file_system(one_writer_directory) as counts:
            yield counts.directory


@both_wrappers
def test_several_wrappers_have_separate_schemes_until_they_end(
    memory_directory: str, wrapped: Wrapped
) -> None:
    with wrapped(memory_directory) as first, wrapped(memory_directory) as other:
        assert first.directory != other.directory
        assert first.inner_directory == other.inner_directory == memory_directory
        file_system_for(first.directory).prepare_directory(f"{first.directory}/a")
        (entry,) = file_system_for(other.directory).list(other.directory)
        assert entry.uri == f"{other.directory}/a"
        assert list(first.calls) == ["prepare_directory"]
        assert list(other.calls) == ["list"]
    for directory in (first.directory, other.directory):
        with pytest.raises(InvalidRequestError):
            file_system_for(directory)


@both_wrappers
def test_wrappers_can_be_nested(memory_directory: str, wrapped: Wrapped) -> None:
    with wrapped(memory_directory) as inner, wrapped(inner.directory) as outer:
        file_system_for(outer.directory).prepare_directory(f"{outer.directory}/a")
        assert list(outer.calls) == list(inner.calls) == ["prepare_directory"]
        (entry,) = file_system_for(memory_directory).list(memory_directory)
        assert entry.uri == f"{memory_directory}/a"


@both_wrappers
def test_a_directory_without_a_scheme_is_refused(wrapped: Wrapped) -> None:
    with pytest.raises(InvalidRequestError), wrapped("/tmp/x"):
        pass
