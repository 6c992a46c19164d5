"""Sections of state whose checksums fit and whose numbers don't."""

import struct
import subprocess
import sys
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from contracts.elements import list_state

from holdfast.backends import OperatorStateBackend
from holdfast.errors import CheckpointCorruptedError
from holdfast.locations import FileSystemCheckpointStorage
from holdfast.locations.adapters import FileStateHandle, file_system_for
from holdfast.locations.checksums import checksum_of
from holdfast.locations.handles import ByteStreamStateHandle, OperatorStateHandle

ROWS = 51


@pytest.fixture
def handle(memory_directory: str) -> OperatorStateHandle:
    """A snapshot of a list of numbers below `ROWS`, in a file."""
    storage = FileSystemCheckpointStorage(memory_directory, inline_threshold=0)
    access = storage.create_checkpoint_storage("job")
    access.initialize_base_locations_for_checkpoint()
    backend = OperatorStateBackend()
    list_state(backend, "s", pa.int64()).add_all(range(ROWS))
    (handle,) = (
        backend.snapshot(access.initialize_location_for_checkpoint(1)).run().state.managed_operator
    )
    return handle


def rewritten(handle: OperatorStateHandle, old: bytes, new: bytes) -> OperatorStateHandle:
    """The same with other bytes in it, in a separate file with the right checksum."""
    with handle.stream.open_input_stream() as stream:
        content = stream.read()
    assert old in content
    content = content.replace(old, new)
    assert isinstance(handle.stream, FileStateHandle)
    uri = f"{handle.stream.uri}-{uuid.uuid4().hex}"
    stream_out = file_system_for(uri).create(uri)
    stream_out.write(content)
    stream_out.commit()
    file = FileStateHandle(uri, len(content), checksum_of(content))
    return OperatorStateHandle(handle.states, file)


@pytest.mark.parametrize("rows", [2**31, 2**63 - 1, -1])
def test_block_with_fewer_bytes_than_its_rows_need_is_corrupt(
    handle: OperatorStateHandle, rows: int
) -> None:
    wrong = rewritten(handle, struct.pack("<q", ROWS), struct.pack("<q", rows))
    with pytest.raises(CheckpointCorruptedError) as caught:
        OperatorStateBackend.restore([wrong])
    assert isinstance(wrong.stream, FileStateHandle)
    assert caught.value.location == wrong.stream.uri


def test_column_without_a_state_is_corrupt_and_named(
    handle: OperatorStateHandle,
) -> None:
    for name in (b"elements"[1:], b"elem\xffnt"):
        wrong = rewritten(handle, b"element", name)
        with pytest.raises(CheckpointCorruptedError) as caught:
            OperatorStateBackend.restore([wrong])
        assert isinstance(wrong.stream, FileStateHandle)
        assert caught.value.location == wrong.stream.uri


def test_text_offsets_out_of_bounds_are_corrupt(memory_directory: str) -> None:
    access = FileSystemCheckpointStorage(memory_directory).create_checkpoint_storage("job")
    access.initialize_base_locations_for_checkpoint()
    backend = OperatorStateBackend()
    list_state(backend, "s", pa.string()).add_all(["a", "bcde", "f"])
    (handle,) = (
        backend.snapshot(access.initialize_location_for_checkpoint(1)).run().state.managed_operator
    )
    assert isinstance(handle.stream, ByteStreamStateHandle)
    right, wrong = struct.pack("<4i", 0, 1, 5, 6), struct.pack("<4i", 0, 1 << 30, 5, 6)
    assert right in handle.stream.data
    stream = ByteStreamStateHandle(handle.stream.data.replace(right, wrong))
    with pytest.raises(CheckpointCorruptedError, match="'s' can't be decoded"):
        OperatorStateBackend.restore([OperatorStateHandle(handle.states, stream)])


COUNTS_THREADS = """
import os
import pyarrow as pa
from holdfast.backends import ListStateDescriptor, OperatorStateBackend
from holdfast.backends.snapshot import read_blocks
from holdfast.locations import FileSystemCheckpointStorage

storage = FileSystemCheckpointStorage("memory://m/checkpoints", inline_threshold=0)
access = storage.create_checkpoint_storage("job")
access.initialize_base_locations_for_checkpoint()
backend = OperatorStateBackend()
backend.get_list_state(ListStateDescriptor("s", pa.int64())).add_all(range(9))
location = access.initialize_location_for_checkpoint(1)
(handle,) = backend.snapshot(location).run().state.managed_operator
before = os.listdir("/proc/self/task")
size = handle.stream.size
assert [len(block) for block in read_blocks(handle.stream, 0, size, name="s")] == [9]
assert os.listdir("/proc/self/task") == before
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_reading_blocks_starts_no_thread_of_arrow() -> None:
    """Such a thread can abort a process that ends: it may release a Python buffer then."""
    subprocess.run([sys.executable, "-c", COUNTS_THREADS], check=True)
