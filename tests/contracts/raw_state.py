"""Raw state of operators and of key groups: streams for it, and its content."""

from collections.abc import Callable

from contracts.elements import memory_factory
from contracts.values import EXCLUSIVE

from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import (
    KeyedStateCheckpointOutputStream,
    OperatorStateCheckpointOutputStream,
    raw_key_groups,
    raw_operator_partitions,
)
from holdfast.locations import FileSystemCheckpointStorage
from holdfast.locations.adapters import CheckpointStateOutputStream
from holdfast.locations.handles import KeyGroupsStateHandle, RawOperatorStateHandle

Make = Callable[[], CheckpointStateOutputStream]
THREE = KeyGroupRange(0, 2)


def memory_stream() -> CheckpointStateOutputStream:
    return memory_factory().create_checkpoint_state_output_stream(EXCLUSIVE)


def file_stream(directory: str, buffer_bytes: int = 64) -> CheckpointStateOutputStream:
    storage = FileSystemCheckpointStorage(
        directory, inline_threshold=0, write_buffer_bytes=buffer_bytes
    )
    location = storage.create_checkpoint_storage("job").initialize_location_for_checkpoint(1)
    return location.create_checkpoint_state_output_stream(EXCLUSIVE)


def partitions_of(stream: CheckpointStateOutputStream, *parts: bytes) -> RawOperatorStateHandle:
    out = OperatorStateCheckpointOutputStream(stream)
    for part in parts:
        out.start_new_partition()
        out.write(part)
    handle = out.close_and_get_handle()
    assert handle is not None
    return handle


def groups_of(
    stream: CheckpointStateOutputStream, key_groups: KeyGroupRange, parts: dict[int, bytes]
) -> KeyGroupsStateHandle | None:
    out = KeyedStateCheckpointOutputStream(stream, key_groups)
    for key_group, part in parts.items():
        out.start_new_key_group(key_group)
        out.write(part)
    return out.close_and_get_handle()


def read_partitions(*handles: RawOperatorStateHandle) -> list[bytes]:
    return [stream.read() for stream in raw_operator_partitions(handles)]


def read_groups(*handles: KeyGroupsStateHandle) -> dict[int, bytes]:
    return {stream.key_group: stream.read() for stream in raw_key_groups(handles)}
