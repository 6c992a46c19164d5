"""A state stream and its local copy: errors of the copy do not affect the stream."""

import gc
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from contracts.files import files_below
from contracts.values import EXCLUSIVE, read
from hypothesis import given
from hypothesis import strategies as st

from holdfast.common import SYSTEM_CLOCK
from holdfast.errors import StorageUnavailableError, StreamClosedError
from holdfast.locations import FileSystemCheckpointStorage
from holdfast.locations.adapters import (
    BytesLike,
    CheckpointStateOutputStream,
    CheckpointStreamFactory,
    FileStateHandle,
)
from holdfast.spark.subtask import LocalFiles
from holdfast.testing import Faults

BUFFER_BYTES = 16
MORE_THAN_A_HANDLE_HOLDS = bytes(2 << 20)

Call = Callable[[CheckpointStateOutputStream], object]

CALLS: dict[str, tuple[str, Call]] = {
    "write": ("write", lambda stream: stream.write(bytes(BUFFER_BYTES))),
    "write of the buffer": ("create", lambda stream: stream.write(bytes(BUFFER_BYTES - 1))),
    "flush": ("create", lambda stream: stream.flush()),
    "flush_to_file": ("write", lambda stream: stream.flush_to_file()),
    "sync": ("sync", lambda stream: stream.sync()),
    "the success call": ("commit", lambda stream: stream.close_and_get_handle()),
}
"""The failing call of a file system, and the call of the stream."""


class Disk:
    """The disk of the copies, which fails on demand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: BaseException | None = None
        self.writes = 0
        self._write = os.write
        monkeypatch.setattr("holdfast.spark.subtask.duplicating_stream.os.write", self.write)

    def write(self, descriptor: int, data: BytesLike) -> int:
        self.writes += 1
        if self.error is not None:
            raise self.error
        return self._write(descriptor, data)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    return tmp_path / "copies"


@pytest.fixture
def factory(faults: Faults, copies: Path) -> CheckpointStreamFactory:
    return duplicating_factory(copies, faults.directory)


def duplicating_factory(copies: Path, directory: str) -> CheckpointStreamFactory:
    """Return a factory of streams into a directory that leave copies."""
    storage = FileSystemCheckpointStorage(
        directory, inline_threshold=0, write_buffer_bytes=BUFFER_BYTES
    )
    location = storage.create_checkpoint_storage("job").initialize_location_for_checkpoint(1)
    local = LocalFiles(
        root=str(copies.parent),
        operator=copies.name,
        subtask=0,
        checkpoint_id=1,
        max_bytes=1 << 30,
        clock=SYSTEM_CLOCK,
    )
    return local.duplicate(location)


@pytest.fixture
def stream(factory: CheckpointStreamFactory) -> Iterator[CheckpointStateOutputStream]:
    with factory.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
        yield stream


def names(copies: Path) -> list[str]:
    return os.listdir(copies) if copies.exists() else []


def test_written_bytes_are_in_storage_and_in_a_copy(
    stream: CheckpointStateOutputStream, copies: Path
) -> None:
    written = b""
    for size in (0, 1, 5, BUFFER_BYTES - 1, BUFFER_BYTES, 100):
        data = bytes([size]) * size
        assert stream.write(data) == size
        written += data
        assert stream.tell() == len(written)
    stream.flush()
    stream.sync()
    handle = stream.close_and_get_handle()
    assert isinstance(handle, FileStateHandle)
    assert read(handle) == written
    (name,) = names(copies)
    assert (copies / name).read_bytes() == written


def test_stream_is_finished_once(stream: CheckpointStateOutputStream, copies: Path) -> None:
    stream.write(b"1")
    stream.close_and_get_handle()
    with pytest.raises(StreamClosedError):
        stream.close_and_get_handle()
    stream.close()
    assert len(names(copies)) == 1


def test_unclosed_stream_warns_once_and_leaves_no_file(
    factory: CheckpointStreamFactory, faults: Faults, copies: Path
) -> None:
    stream = factory.create_checkpoint_state_output_stream(EXCLUSIVE)
    stream.write(MORE_THAN_A_HANDLE_HOLDS)
    with pytest.warns(ResourceWarning, match="neither kept nor closed") as warned:
        del stream
        gc.collect()
    assert len(warned) == 1
    assert names(copies) == []
    assert files_below(faults.inner_directory) == set()


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), RuntimeError("a bug")], ids=repr
)
def test_failing_copy_is_discarded_and_the_stream_continues(
    *,
    stream: CheckpointStateOutputStream,
    copies: Path,
    disk: Disk,
    error: Exception,
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk.error = error
    stream.write(MORE_THAN_A_HANDLE_HOLDS)
    assert names(copies) == []
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert str(error) in caplog.text
    stream.write(MORE_THAN_A_HANDLE_HOLDS)
    handle = stream.close_and_get_handle()
    assert handle is not None
    assert read(handle) == 2 * MORE_THAN_A_HANDLE_HOLDS
    assert (disk.writes, len(caplog.records), names(copies)) == (1, 1, [])


def test_failing_end_of_a_copy_discards_only_the_copy(
    stream: CheckpointStateOutputStream, copies: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    stream.write(b"held back until the end")
    disk.error = OSError(5, "broken disk")
    handle = stream.close_and_get_handle()
    assert handle is not None
    assert read(handle) == b"held back until the end"
    assert len(caplog.records) == 1
    assert names(copies) == []


@pytest.mark.parametrize(("fault", "call"), CALLS.values(), ids=CALLS)
def test_error_of_the_stream_is_raised_and_leaves_no_copy(
    *,
    faults: Faults,
    stream: CheckpointStateOutputStream,
    copies: Path,
    fault: str,
    call: Call,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream.write(b"12")
    if fault == "sync":
        stream.flush_to_file()
    faults.before(fault, StorageUnavailableError("out of reach"))
    with pytest.raises(StorageUnavailableError, match="out of reach"):
        call(stream)
    with pytest.raises(StreamClosedError):
        stream.close_and_get_handle()
    assert names(copies) == []
    assert files_below(faults.inner_directory) == set()
    assert caplog.records == []


@pytest.mark.parametrize("fault", ["write", "sync", "commit"])
def test_copy_is_discarded_when_the_stream_fails(
    *, faults: Faults, stream: CheckpointStateOutputStream, copies: Path, fault: str
) -> None:
    _, call = next(item for item in reversed(CALLS.values()) if item[0] == fault)
    stream.write(MORE_THAN_A_HANDLE_HOLDS)
    stream.write(b"held back")
    assert len(names(copies)) == 1
    faults.before(fault, StorageUnavailableError("out of reach"))
    with pytest.raises(StorageUnavailableError):
        call(stream)
    assert names(copies) == []


@pytest.mark.parametrize("place", ["storage", "copy"])
def test_interrupt_is_raised_and_leaves_no_files(
    *, faults: Faults, factory: CheckpointStreamFactory, copies: Path, disk: Disk, place: str
) -> None:
    with factory.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
        if place == "copy":
            disk.error = KeyboardInterrupt()
        else:
            faults.before("write", KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            stream.write(MORE_THAN_A_HANDLE_HOLDS)
    assert names(copies) == []
    assert files_below(faults.inner_directory) == set()


def test_close_discards_both_and_may_be_repeated(
    faults: Faults, stream: CheckpointStateOutputStream, copies: Path
) -> None:
    stream.write(MORE_THAN_A_HANDLE_HOLDS)
    stream.flush_to_file()
    assert (len(names(copies)), "create" in faults.calls) == (1, True)
    for _ in range(2):
        stream.close()
    assert names(copies) == []
    assert files_below(faults.inner_directory) == set()
    with pytest.raises(StreamClosedError):
        stream.close_and_get_handle()


_operations = st.lists(
    st.one_of(
        st.binary(max_size=3 * BUFFER_BYTES).map(lambda data: data * (1 << 15)),
        st.sampled_from(["flush", "flush_to_file", "sync"]),
    ),
    max_size=10,
)


@given(operations=_operations, nth=st.none() | st.integers(1, 5))
def test_stream_is_complete_for_any_outcome_of_the_copy(
    operations: list[bytes | str],
    nth: int | None,
    memory_directory: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    copies = tmp_path_factory.mktemp("copies")
    factory = duplicating_factory(copies, memory_directory)
    written = b""
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        factory.create_checkpoint_state_output_stream(EXCLUSIVE) as stream,
    ):
        disk = Disk(monkeypatch)
        for number, operation in enumerate(operations, 1):
            if number == nth:
                disk.error = OSError(5, "broken disk")
            if isinstance(operation, str):
                getattr(stream, operation)()
            else:
                stream.write(operation)
                written += operation
            assert stream.tell() == len(written)
        handle = stream.close_and_get_handle()
    assert (b"" if handle is None else read(handle)) == written
    kept = [(copies / name).read_bytes() for name in names(copies)]
    assert kept in ([written], []) if disk.error else kept == ([written] if written else [])
