import pytest
from contracts.values import EXCLUSIVE, read

from holdfast.errors import InvalidRequestError
from holdfast.locations import (
    ByteStreamStateHandle,
    CheckpointStorage,
    MemoryCheckpointStorage,
)
from holdfast.testing import CheckpointStorageContract


class TestMemoryCheckpointStorage(CheckpointStorageContract):
    resolvable = False

    @pytest.fixture
    def storage(self) -> CheckpointStorage:
        return MemoryCheckpointStorage()

    def files(self, storage: CheckpointStorage) -> set[str]:
        return set()

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

    def test_the_limit_is_five_mebibytes_a_state(self) -> None:
        storage = MemoryCheckpointStorage().create_checkpoint_storage("job")
        location = storage.initialize_location_for_checkpoint(1)
        for _ in range(2):
            with location.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
                stream.write(bytes(5 << 20))
                with pytest.raises(InvalidRequestError):
                    stream.write(b"1")

    @pytest.mark.parametrize("limit", [0, -1])
    def test_a_limit_that_is_not_positive_is_refused(self, limit: int) -> None:
        with pytest.raises(InvalidRequestError):
            MemoryCheckpointStorage(limit)

    def test_checkpoints_do_not_outlive_the_driver(self) -> None:
        storage = MemoryCheckpointStorage().create_checkpoint_storage("job")
        assert not storage.supports_highly_available_storage
