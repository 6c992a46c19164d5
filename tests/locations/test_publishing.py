"""Stores without exclusive creation: they are detected, and refused unless there is a single writer."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import BinaryIO

import pytest
from contracts.errors import of_kind

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageUnavailableError,
)
from holdfast.locations import FileSystemCheckpointStorage, complete_checkpoint
from holdfast.locations.adapters import (
    CheckpointStorageAccess,
    FileOutputStream,
    FileStatus,
    FileSystem,
    MemoryFileSystem,
    file_system_for,
    register_file_system,
    unregister_file_system,
)
from holdfast.locations.coordination import load_latest_checkpoint
from holdfast.locations.file_systems import publish
from holdfast.testing import Faults, faulty_file_system, metadata_of


class Overwriting(MemoryFileSystem):
    """A store that ignores the condition and silently replaces the file."""

    def publish(self, uri: str, data: bytes, /) -> None:
        self.delete([uri])
        try:
            super().publish(uri, data)
        except CheckpointConflictError:  # the other one of two racing writers was first
            self.publish(uri, data)


class OverwritingAtFirst(MemoryFileSystem):
    """A store that refuses with a delay: files are replaced while writers race."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    def publish(self, uri: str, data: bytes, /) -> None:
        self.writes += 1
        if self.writes <= 3:
            self.delete([uri])
        super().publish(uri, data)


class OneWriter:
    """A store without `publish`."""

    def __init__(self) -> None:
        inner = MemoryFileSystem()
        self.prepare_directory = inner.prepare_directory
        self.create = inner.create
        self.open = inner.open
        self.list = inner.list
        self.delete = inner.delete
        self.delete_empty_directory = inner.delete_empty_directory
        self.delete_tree = inner.delete_tree


@pytest.fixture
def register(memory_directory: str) -> Iterator[Callable[[Callable[[], FileSystem]], str]]:
    """A function that registers a store and returns the URI of an empty directory on it."""
    registered: list[str] = []

    def register_store(factory: Callable[[], FileSystem]) -> str:
        register_file_system("odd", factory)
        registered.append("odd")
        directory = memory_directory.replace("memory:", "odd:")
        file_system_for(directory).prepare_directory(directory)
        return directory

    yield register_store
    if registered:
        directory = memory_directory.replace("memory:", "odd:")
        file_system_for(directory).delete_tree(directory)
    unregister_file_system("odd")


Register = Callable[[Callable[[], FileSystem]], str]


def job_in(directory: str, *, single_writer: bool = False) -> CheckpointStorageAccess:
    storage = FileSystemCheckpointStorage(directory, single_writer=single_writer)
    return storage.create_checkpoint_storage("job")


def probes_in(directory: str) -> list[FileStatus]:
    return [
        entry
        for entry in file_system_for(directory).list(f"{directory}/job")
        if "_probe-" in entry.uri
    ]


def commit(access: CheckpointStorageAccess, checkpoint_id: int, token: str) -> None:
    location = access.initialize_location_for_checkpoint(checkpoint_id)
    complete_checkpoint(location, metadata_of(checkpoint_id=checkpoint_id, commit_token=token))


@pytest.mark.parametrize("kind", [Overwriting, OverwritingAtFirst])
def test_overwriting_store_is_refused_with_the_way_out(
    register: Register, kind: Callable[[], FileSystem]
) -> None:
    directory = register(kind)
    with pytest.raises(InvalidRequestError, check=of_kind("not-exclusive")) as caught:
        job_in(directory).initialize_base_locations_for_checkpoint()
    assert "spark.holdfast.checkpoint.single-writer" in str(caught.value)
    assert "replace" in str(caught.value)
    assert probes_in(directory) == []


def test_refused_store_is_refused_again(register: Register) -> None:
    access = job_in(register(Overwriting))
    for _ in range(2):
        with pytest.raises(InvalidRequestError):
            access.initialize_base_locations_for_checkpoint()


def test_store_without_exclusive_creation_is_refused_with_the_way_out(
    register: Register,
) -> None:
    directory = register(OneWriter)
    with pytest.raises(InvalidRequestError, check=of_kind("not-exclusive")):
        job_in(directory).initialize_base_locations_for_checkpoint()
    with pytest.raises(InvalidRequestError, check=of_kind("not-exclusive")):
        publish(f"{directory}/x", b"mine", single_writer=False)
    assert [entry.uri for entry in file_system_for(directory).list(directory)] == [
        f"{directory}/job"
    ]


@pytest.mark.parametrize("kind", [Overwriting, OneWriter])
def test_declared_single_writer_publishes_and_sees_its_files(
    register: Register, kind: Callable[[], FileSystem]
) -> None:
    directory = register(kind)
    access = job_in(directory, single_writer=True)
    access.initialize_base_locations_for_checkpoint()
    access.claim_job().check()
    commit(access, 1, "first")
    with pytest.raises(CheckpointConflictError, check=of_kind("exists")):
        commit(access, 1, "second")
    commit(access, 1, "first")  # its own bytes, as after a lost answer
    commit(access, 2, "third")
    latest = load_latest_checkpoint(access)
    assert latest is not None
    assert (latest.checkpoint_id, latest.metadata.commit_token) == (2, "third")
    assert probes_in(directory) == []


def test_exclusive_store_is_probed_once_per_directory(faults: Faults) -> None:
    access = job_in(faults.directory)
    access.initialize_base_locations_for_checkpoint()
    assert faults.calls.count("publish") > 1
    assert probes_in(faults.inner_directory) == []
    faults.calls.clear()
    job_in(faults.directory).initialize_base_locations_for_checkpoint()
    assert "publish" not in faults.calls
    other = FileSystemCheckpointStorage(faults.directory).create_checkpoint_storage("other")
    other.initialize_base_locations_for_checkpoint()
    assert faults.calls.count("publish") > 1


def test_declared_single_writer_is_not_tried(faults: Faults) -> None:
    job_in(faults.directory, single_writer=True).initialize_base_locations_for_checkpoint()
    assert "publish" not in faults.calls


@pytest.mark.parametrize(
    ("call", "nth"), [("publish", 1), ("publish", 5), ("publish", 8), ("publish", 9), ("open", 1)]
)
def test_store_failing_during_the_probe_is_probed_again(
    memory_directory: str, call: str, nth: int
) -> None:
    with faulty_file_system(memory_directory) as faults:
        faults.before(call, StorageUnavailableError("as planned"), nth=nth)
        with pytest.raises(StorageUnavailableError):
            job_in(faults.directory).initialize_base_locations_for_checkpoint()
        assert probes_in(faults.inner_directory) == []
        faults.calls.clear()
        faults.clear()
        job_in(faults.directory).initialize_base_locations_for_checkpoint()
        assert "publish" in faults.calls
        assert probes_in(faults.inner_directory) == []


def test_lost_answer_does_not_make_a_store_look_unsafe(
    faults: Faults,
) -> None:
    # The store performed one, and repeated it because its answer got lost: no writer wins.
    for nth in range(1, 9):
        faults.after("publish", CheckpointConflictError("as planned"), nth=nth)
    job_in(faults.directory).initialize_base_locations_for_checkpoint()
    assert probes_in(faults.inner_directory) == []


class TestSingleWriters:
    @pytest.mark.parametrize("call", ["create", "write", "commit"])
    def test_publication_failing_early_leaves_nothing(self, faults: Faults, call: str) -> None:
        register_file_system("plain", lambda: _PlainFileSystem(faults))
        try:
            directory = faults.directory.replace(faults.directory.partition(":")[0], "plain")
            faults.before(call, InvalidRequestError("as planned"))
            with pytest.raises(InvalidRequestError):
                publish(f"{directory}/x", b"mine", single_writer=True)
            assert list(file_system_for(faults.inner_directory).list(faults.inner_directory)) == []
            publish(f"{directory}/x", b"mine", single_writer=True)
            with pytest.raises(CheckpointConflictError):
                publish(f"{directory}/x", b"another", single_writer=True)
        finally:
            unregister_file_system("plain")

    def test_lost_answer_is_a_success_or_unknown(self, faults: Faults) -> None:
        register_file_system("plain", lambda: _PlainFileSystem(faults))
        try:
            directory = faults.directory.replace(faults.directory.partition(":")[0], "plain")
            faults.lose_answer("commit")
            error: CheckpointError | None = None
            try:
                publish(f"{directory}/x", b"mine", single_writer=True)
            except OutcomeUnknownError as unknown:
                error = unknown
            with file_system_for(faults.inner_directory).open(
                f"{faults.inner_directory}/x"
            ) as stream:
                assert stream.read() == b"mine"
            assert error is None or isinstance(error, OutcomeUnknownError)
        finally:
            unregister_file_system("plain")


class _PlainFileSystem:
    """The faulty store, through a separate scheme, and without exclusive creation."""

    def __init__(self, faults: Faults) -> None:
        self._inner = file_system_for(faults.directory).inner
        self._scheme = faults.directory.partition(":")[0]

    def _there(self, uri: str) -> str:
        return uri.replace("plain:", f"{self._scheme}:")

    def prepare_directory(self, uri: str, /) -> None:
        self._inner.prepare_directory(self._there(uri))

    def create(self, uri: str, /) -> FileOutputStream:
        return self._inner.create(self._there(uri))

    def open(self, uri: str, /) -> BinaryIO:
        return self._inner.open(self._there(uri))

    def list(self, uri: str, /) -> Iterable[FileStatus]:
        return [
            replace(entry, uri=entry.uri.replace(f"{self._scheme}:", "plain:"))
            for entry in self._inner.list(self._there(uri))
        ]

    def delete(self, uris: Iterable[str], /) -> None:
        self._inner.delete([self._there(uri) for uri in uris])

    def delete_empty_directory(self, uri: str, /) -> None:
        self._inner.delete_empty_directory(self._there(uri))

    def delete_tree(self, uri: str, /) -> None:
        self._inner.delete_tree(self._there(uri))
