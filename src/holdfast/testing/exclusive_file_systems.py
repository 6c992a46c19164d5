"""Additional requirements of file systems with exclusive creation."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from holdfast.errors import CheckpointConflictError, CheckpointNotFoundError
from holdfast.locations.file_systems import ExclusiveFileSystem
from holdfast.testing.file_systems import FileSystemContract, create_and_commit

Write = Callable[[ExclusiveFileSystem, str, bytes], None]
"""Stores bytes under a URI."""

RACERS = 8


def publish(file_system: ExclusiveFileSystem, uri: str, data: bytes) -> None:
    file_system.publish(uri, data)


both_writes = pytest.mark.parametrize("write", [create_and_commit, publish])
"""Runs a test with each of the two as its argument `write`."""


def race(attempt: Callable[[int], object]) -> list[bool]:
    """Run an attempt in all racers at once; returns for each whether it won, that is, met no conflict."""
    start = threading.Barrier(RACERS)

    def wins(racer: int) -> bool:
        start.wait()
        try:
            attempt(racer)
        except CheckpointConflictError:
            return False
        return True

    with ThreadPoolExecutor(RACERS) as pool:
        return list(pool.map(wins, range(RACERS)))


class ExclusiveFileSystemContract(FileSystemContract):
    """Requirements of every `ExclusiveFileSystem`; provide the fixtures of `FileSystemContract`."""

    @pytest.fixture
    def file_system(self) -> ExclusiveFileSystem:
        """The adapter."""
        raise NotImplementedError

    def test_it_is_taken_for_an_exclusive_file_system(
        self, file_system: ExclusiveFileSystem
    ) -> None:
        assert isinstance(file_system, ExclusiveFileSystem)

    @pytest.mark.parametrize("data", [b"", b"1", bytes(3 << 20)])
    def test_published_file_is_complete_and_the_only_one(
        self, file_system: ExclusiveFileSystem, directory: str, data: bytes
    ) -> None:
        file_system.publish(f"{directory}/x", data)
        assert self.files(directory) == {"x": data}

    @both_writes
    @pytest.mark.parametrize("second", [b"second", b"first", b""])
    def test_a_conflict_leaves_the_first_file_and_nothing_else(
        self, file_system: ExclusiveFileSystem, directory: str, write: Write, second: bytes
    ) -> None:
        write(file_system, f"{directory}/x", b"first")
        with pytest.raises(CheckpointConflictError):
            write(file_system, f"{directory}/x", second)
        assert self.files(directory) == {"x": b"first"}

    @both_writes
    def test_publish_over_foreign_file_is_a_conflict(
        self, file_system: ExclusiveFileSystem, directory: str, write: Write
    ) -> None:
        self.put(f"{directory}/x", b"theirs")
        with pytest.raises(CheckpointConflictError) as caught:
            write(file_system, f"{directory}/x", b"ours")
        assert caught.value.location == f"{directory}/x"
        assert self.files(directory) == {"x": b"theirs"}

    def test_created_and_published_file_of_one_name_first_one_stays(
        self, file_system: ExclusiveFileSystem, directory: str
    ) -> None:
        stream = file_system.create(f"{directory}/x")
        stream.write(b"made")
        kept = []
        with suppress(CheckpointConflictError):
            file_system.publish(f"{directory}/x", b"published")
            kept.append(b"published")
        with suppress(CheckpointConflictError):
            stream.commit()
            kept.append(b"made")
        stream.abort()
        assert len(kept) == 1
        assert self.files(directory) == {"x": kept[0]}

    @both_writes
    def test_publish_under_name_of_directory_is_a_conflict(
        self, file_system: ExclusiveFileSystem, directory: str, write: Write
    ) -> None:
        file_system.prepare_directory(f"{directory}/x")
        if self.has_directories:
            with pytest.raises(CheckpointConflictError):
                write(file_system, f"{directory}/x", b"1")
            assert self.files(directory) == {}
        else:
            write(file_system, f"{directory}/x", b"1")
            assert self.files(directory) == {"x": b"1"}

    def test_publish_in_missing_directory_is_refused(
        self, file_system: ExclusiveFileSystem, directory: str
    ) -> None:
        if self.has_directories:
            with pytest.raises(CheckpointNotFoundError):
                file_system.publish(f"{directory}/missing/x", b"1")
            assert self.files(directory) == {}
        else:
            file_system.publish(f"{directory}/missing/x", b"1")
            assert self.files(directory) == {"missing/x": b"1"}

    @both_writes
    def test_one_of_eight_racing_threads_wins(
        self, file_system: ExclusiveFileSystem, directory: str, write: Write
    ) -> None:
        def attempt(racer: int) -> None:
            write(file_system, f"{directory}/x", b"%d" % racer * 1000)

        won = race(attempt)
        assert won.count(True) == 1
        assert self.files(directory) == {"x": b"%d" % won.index(True) * 1000}

    def test_a_deleted_file_can_be_published_again(
        self, file_system: ExclusiveFileSystem, directory: str
    ) -> None:
        for content in (b"1", b"2"):
            file_system.publish(f"{directory}/x", content)
            with file_system.open(f"{directory}/x") as stream:
                assert stream.read() == content
            file_system.delete([f"{directory}/x"])
