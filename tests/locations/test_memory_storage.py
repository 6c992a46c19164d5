import pickle
import random

import pytest
from contracts.files import files_below
from contracts.values import EXCLUSIVE, read

from holdfast.common import uripath
from holdfast.errors import InvalidRequestError
from holdfast.locations import (
    CheckpointStorage,
    FileSystemCheckpointStorage,
    MemoryCheckpointStorage,
    complete_checkpoint,
)
from holdfast.locations.adapters import ByteStreamStateHandle, CheckpointStorageLocation
from holdfast.locations.storages import (
    NonPersistentMetadataCheckpointStorageLocation,
    PersistentMetadataCheckpointStorageLocation,
)
from holdfast.testing import CheckpointStorageContract, metadata_of


class TestMemoryCheckpointStorage(CheckpointStorageContract):
    @pytest.fixture
    def storage(self) -> CheckpointStorage:
        return MemoryCheckpointStorage()

    def files(self, storage: CheckpointStorage) -> set[str]:
        assert isinstance(storage, MemoryCheckpointStorage)
        job = storage.create_checkpoint_storage("job").directory
        return files_below(uripath.parent(job.uri))

    def test_copy_in_this_process_has_the_same_checkpoints(
        self, storage: CheckpointStorage, location: CheckpointStorageLocation
    ) -> None:
        complete_checkpoint(location, metadata_of())
        copy = pickle.loads(pickle.dumps(storage))
        assert list(copy.create_checkpoint_storage("job").completed_checkpoints()) == [1]
        other = MemoryCheckpointStorage().create_checkpoint_storage("job")
        assert other.completed_checkpoints() == {}

    def test_locations_are_of_two_kinds(
        self, location: CheckpointStorageLocation, memory_directory: str
    ) -> None:
        storage = MemoryCheckpointStorage(directory=memory_directory)
        persistent = storage.create_checkpoint_storage("job").initialize_location_for_checkpoint(1)
        assert isinstance(location, NonPersistentMetadataCheckpointStorageLocation)
        assert isinstance(persistent, PersistentMetadataCheckpointStorageLocation)

    @pytest.mark.parametrize("parts", [[10], [9, 1], [0, 10, 0]])
    def test_exactly_the_limit_is_accepted(self, parts: list[int]) -> None:
        storage = MemoryCheckpointStorage(10).create_checkpoint_storage("job")
        location = storage.initialize_location_for_checkpoint(1)
        stream = location.create_checkpoint_state_output_stream(EXCLUSIVE)
        for size in parts:
            stream.write(b"1" * size)
        with pytest.raises(InvalidRequestError, match="10 bytes"):
            stream.write(b"1")
        assert stream.tell() == 10
        handle = stream.close_and_get_handle()
        assert isinstance(handle, ByteStreamStateHandle)
        assert read(handle) == b"1" * 10

    def test_limit_is_five_mebibytes_a_state(self) -> None:
        storage = MemoryCheckpointStorage().create_checkpoint_storage("job")
        location = storage.initialize_location_for_checkpoint(1)
        for _ in range(2):
            with location.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
                stream.write(bytes(5 << 20))
                with pytest.raises(InvalidRequestError):
                    stream.write(b"1")

    @pytest.mark.parametrize("limit", [0, -1])
    def test_limit_below_one_is_refused(self, limit: int) -> None:
        with pytest.raises(InvalidRequestError):
            MemoryCheckpointStorage(limit)


class TestPersistentMemoryCheckpointStorage(CheckpointStorageContract):
    @pytest.fixture
    def storage(self, memory_directory: str) -> CheckpointStorage:
        return MemoryCheckpointStorage(directory=memory_directory)

    def files(self, storage: CheckpointStorage) -> set[str]:
        assert isinstance(storage, MemoryCheckpointStorage)
        assert storage.directory is not None
        return files_below(storage.directory)

    def test_all_state_is_in_the_metadata_file(self, storage: CheckpointStorage) -> None:
        access = storage.create_checkpoint_storage("job")
        access.initialize_base_locations_for_checkpoint()
        location = access.initialize_location_for_checkpoint(1)
        with location.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
            stream.write(random.Random(7).randbytes(100_000))
            handle = stream.close_and_get_handle()
        assert handle is not None
        done = complete_checkpoint(location, metadata_of(handle))
        assert {uri.rpartition("/")[2] for uri in self.files(storage)} == {"_metadata"}
        assert done.metadata_bytes > 100_000

    def test_limit_applies_to_persistent_metadata(self, memory_directory: str) -> None:
        storage = MemoryCheckpointStorage(10, directory=memory_directory)
        location = storage.create_checkpoint_storage("job").initialize_location_for_savepoint(
            1, memory_directory
        )
        with location.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
            with pytest.raises(InvalidRequestError, match="10 bytes"):
                stream.write(bytes(11))


def test_savepoints_go_to_the_default_directory(memory_directory: str) -> None:
    storages: list[CheckpointStorage] = [
        MemoryCheckpointStorage(savepoint_directory=f"{memory_directory}/sp"),
        FileSystemCheckpointStorage(
            f"{memory_directory}/chk", savepoint_directory=f"{memory_directory}/sp"
        ),
    ]
    for storage in storages:
        access = storage.create_checkpoint_storage("job")
        location = access.initialize_location_for_savepoint(1)
        assert location.external_pointer.startswith(f"{memory_directory}/sp/savepoint-job-")


@pytest.mark.parametrize("directory", ["no/scheme", "file:///"])
def test_invalid_directory_is_refused(directory: str) -> None:
    with pytest.raises(InvalidRequestError):
        MemoryCheckpointStorage(directory=directory)
    with pytest.raises(InvalidRequestError):
        MemoryCheckpointStorage(savepoint_directory=directory)
