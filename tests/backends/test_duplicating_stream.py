import logging
from collections.abc import Callable, Iterator

import pytest
from contracts.values import EXCLUSIVE, files_below, read
from hypothesis import given
from hypothesis import strategies as st

from holdfast.backends.snapshot import DuplicatingCheckpointOutputStream
from holdfast.errors import (
    CheckpointError,
    InvalidRequestError,
    StorageFullError,
    StorageUnavailableError,
    StreamClosedError,
)
from holdfast.locations import FileSystemCheckpointStorage, MemoryCheckpointStorage
from holdfast.locations.adapters import (
    CheckpointStateOutputStream,
    FileStateHandle,
    StreamStateHandle,
)
from holdfast.testing import ANY_CALL, Faults, faulty_file_system

BUFFER_BYTES = 16

Call = Callable[[CheckpointStateOutputStream], object]

CALLS: dict[str, tuple[str, Call]] = {
    "write": ("write", lambda stream: stream.write(bytes(BUFFER_BYTES))),
    "write of what was held back": ("create", lambda stream: stream.write(bytes(BUFFER_BYTES - 1))),
    "flush": ("create", lambda stream: stream.flush()),
    "flush_to_file": ("write", lambda stream: stream.flush_to_file()),
    "sync": ("sync", lambda stream: stream.sync()),
}
"""Which call of a file system fails, in which call of the stream."""

failing = pytest.mark.parametrize(("fault", "call"), CALLS.values(), ids=CALLS)


def file_stream(directory: str) -> CheckpointStateOutputStream:
    storage = FileSystemCheckpointStorage(
        directory, inline_threshold=0, write_buffer_bytes=BUFFER_BYTES
    )
    location = storage.create_checkpoint_storage("job").initialize_location_for_checkpoint(1)
    return location.create_checkpoint_state_output_stream(EXCLUSIVE)


def memory_stream(max_state_bytes: int = 1 << 20) -> CheckpointStateOutputStream:
    storage = MemoryCheckpointStorage(max_state_bytes).create_checkpoint_storage("job")
    location = storage.initialize_location_for_checkpoint(1)
    return location.create_checkpoint_state_output_stream(EXCLUSIVE)


class Pair:
    """A primary and a secondary directory, both of which fail when told to."""

    def __init__(self, primary: Faults, secondary: Faults) -> None:
        self.primary = primary
        self.secondary = secondary

    def stream(self) -> DuplicatingCheckpointOutputStream:
        return DuplicatingCheckpointOutputStream(
            file_stream(self.primary.directory), file_stream(self.secondary.directory)
        )


@pytest.fixture
def pair(faults: Faults, local_directory: str) -> Iterator[Pair]:
    with faulty_file_system(local_directory) as secondary:
        yield Pair(faults, secondary)


def test_what_is_written_is_behind_both_handles(pair: Pair) -> None:
    with pair.stream() as stream:
        written = b""
        for size in (0, 1, 5, BUFFER_BYTES - 1, BUFFER_BYTES, 100):
            data = bytes([size]) * size
            assert stream.write(data) == size
            written += data
            assert stream.tell() == len(written)
        stream.flush()
        stream.sync()
        primary = stream.close_and_get_handle()
        secondary = stream.close_and_get_secondary_handle()
    assert isinstance(primary, FileStateHandle)
    assert isinstance(secondary, FileStateHandle)
    assert len(files_below(pair.primary.behind)) == 1
    assert len(files_below(pair.secondary.behind)) == 1
    assert primary.checksum == secondary.checksum
    assert read(primary) == read(secondary) == written


@pytest.mark.parametrize("primary_first", [True, False])
def test_the_handles_can_be_had_in_any_order_and_once(
    pair: Pair,
    primary_first: bool,  # noqa: FBT001
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pair.stream() as stream:
        stream.write(b"1")
        calls = [stream.close_and_get_handle, stream.close_and_get_secondary_handle]
        ordered = calls if primary_first else calls[::-1]
        handles = [call() for call in ordered]
        assert all(handles)
        for call in ordered:
            with pytest.raises(StreamClosedError):
                call()
    assert caplog.records == []
    assert [read(handle) for handle in handles if handle] == [b"1", b"1"]


def test_nothing_written_makes_no_handles(pair: Pair) -> None:
    with pair.stream() as stream:
        stream.write(b"")
        assert stream.close_and_get_handle() is None
        assert stream.close_and_get_secondary_handle() is None


def test_streams_that_go_on_from_the_same_position_are_aligned() -> None:
    streams = memory_stream(), memory_stream()
    for stream in streams:
        stream.write(b"head")
    with DuplicatingCheckpointOutputStream(*streams) as both:
        assert both.tell() == 4
        both.write(b"!")
        handles = both.close_and_get_handle(), both.close_and_get_secondary_handle()
    assert [read(handle) for handle in handles if handle] == [b"head!", b"head!"]


def test_a_secondary_at_another_position_is_given_up_at_once(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    secondary = file_stream(pair.secondary.directory)
    secondary.write(bytes(BUFFER_BYTES))
    assert files_below(pair.secondary.behind)
    with DuplicatingCheckpointOutputStream(
        file_stream(pair.primary.directory), secondary
    ) as stream:
        assert files_below(pair.secondary.behind) == set()
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        stream.write(b"1")
        primary = stream.close_and_get_handle()
        with pytest.raises(InvalidRequestError) as caught:
            stream.close_and_get_secondary_handle()
    assert str(BUFFER_BYTES) in str(caught.value.__cause__)
    assert primary is not None
    assert read(primary) == b"1"


@failing
def test_a_secondary_that_fails_is_given_up_and_the_primary_goes_on(
    pair: Pair, fault: str, call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    with pair.stream() as stream:
        begin(stream, fault)
        pair.secondary.before(fault, StorageUnavailableError("out of reach"))
        call(stream)
        assert files_below(pair.secondary.behind) == set()
        assert len(caplog.records) == 1
        assert caplog.records[0].exc_info
        pair.secondary.calls.clear()
        stream.write(b"and so on" * 10)
        stream.flush_to_file()
        stream.sync()
        position = stream.tell()
        primary = stream.close_and_get_handle()
        for _ in range(2):
            with pytest.raises(StorageUnavailableError) as caught:
                stream.close_and_get_secondary_handle()
        assert str(caught.value.__cause__) == "out of reach"
    assert set(pair.secondary.calls) <= {"abort"}
    assert len(caplog.records) == 1
    assert primary is not None
    assert primary.size == position
    assert read(primary).endswith(b"and so on" * 10)
    assert files_below(pair.secondary.behind) == set()


@failing
def test_an_error_of_the_primary_is_the_callers_and_leaves_nothing(
    pair: Pair, fault: str, call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    with pair.stream() as stream:
        begin(stream, fault)
        pair.primary.before(fault, StorageUnavailableError("out of reach"))
        with pytest.raises(StorageUnavailableError, match="out of reach"):
            call(stream)
        assert files_below(pair.secondary.behind) == set()
        with pytest.raises(StorageUnavailableError):
            stream.close_and_get_secondary_handle()
        with pytest.raises(StreamClosedError):
            stream.close_and_get_handle()
    assert files_below(pair.primary.behind) == set()
    assert caplog.records == []


def begin(stream: CheckpointStateOutputStream, fault: str) -> None:
    """Bring the stream to where the fault is next."""
    stream.write(b"12")
    if fault == "sync":
        stream.flush_to_file()


def test_a_primary_that_fails_in_the_end_leaves_no_copy(pair: Pair) -> None:
    with pair.stream() as stream:
        stream.write(bytes(100))
        pair.primary.before("commit", StorageUnavailableError("out of reach"))
        with pytest.raises(StorageUnavailableError):
            stream.close_and_get_handle()
        with pytest.raises(StorageUnavailableError):
            stream.close_and_get_secondary_handle()
    for faults in (pair.primary, pair.secondary):
        assert files_below(faults.behind) == set()


def test_a_secondary_that_fails_in_the_end_says_so_and_the_primary_stays(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    with pair.stream() as stream:
        stream.write(bytes(100))
        primary = stream.close_and_get_handle()
        pair.secondary.before("commit", OSError(5, "broken disk"))
        for _ in range(2):
            with pytest.raises(StorageUnavailableError) as caught:
                stream.close_and_get_secondary_handle()
            assert isinstance(caught.value.__cause__, OSError)
    assert len(caplog.records) == 1
    assert primary is not None
    assert read(primary) == bytes(100)
    assert files_below(pair.secondary.behind) == set()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StorageFullError("no room", "file:///copy"), StorageFullError),
        (InvalidRequestError("no such bucket"), InvalidRequestError),
        (OSError(5, "broken disk"), StorageUnavailableError),
        (RuntimeError("a bug"), StorageUnavailableError),
    ],
    ids=repr,
)
def test_the_secondary_handle_is_refused_by_the_class_of_what_went_wrong(
    error: Exception, kind: type[CheckpointError], pair: Pair
) -> None:
    with pair.stream() as stream:
        pair.secondary.before("write", error)
        stream.write(bytes(100))
        with pytest.raises(kind) as caught:
            stream.close_and_get_secondary_handle()
    assert type(caught.value) is kind
    assert caught.value.location == getattr(error, "location", "")
    assert caught.value.__cause__ is error


def test_a_secondary_that_has_less_room_is_given_up() -> None:
    with DuplicatingCheckpointOutputStream(memory_stream(), memory_stream(10)) as stream:
        stream.write(bytes(10))
        stream.write(b"1")
        primary = stream.close_and_get_handle()
        with pytest.raises(InvalidRequestError):
            stream.close_and_get_secondary_handle()
    assert primary is not None
    assert primary.size == 11


@pytest.mark.parametrize("which", ["primary", "secondary"])
def test_an_interrupt_in_either_stream_comes_through_and_ends_the_copy(
    which: str, pair: Pair
) -> None:
    with pair.stream() as stream:
        getattr(pair, which).before("write", KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            stream.write(bytes(100))
        with pytest.raises(StorageUnavailableError):
            stream.close_and_get_secondary_handle()
    for faults in (pair.primary, pair.secondary):
        assert files_below(faults.behind) == set()


def test_closing_discards_both_and_may_be_repeated(pair: Pair) -> None:
    stream = pair.stream()
    stream.write(bytes(100))
    stream.flush_to_file()
    for _ in range(2):
        stream.close()
    for faults in (pair.primary, pair.secondary):
        assert "create" in faults.calls
        assert files_below(faults.behind) == set()
    for call in (stream.close_and_get_handle, stream.close_and_get_secondary_handle):
        with pytest.raises(StreamClosedError):
            call()


def test_leaving_without_the_secondary_handle_keeps_the_primary_alone(pair: Pair) -> None:
    with pair.stream() as stream:
        stream.write(bytes(100))
        primary = stream.close_and_get_handle()
    assert primary is not None
    assert read(primary) == bytes(100)
    assert files_below(pair.secondary.behind) == set()


def content_of(handle: StreamStateHandle | None) -> bytes:
    return b"" if handle is None else read(handle)


_operations = st.lists(
    st.one_of(
        st.binary(max_size=3 * BUFFER_BYTES),
        st.sampled_from(["flush", "flush_to_file", "sync"]),
    ),
    max_size=10,
)


@given(operations=_operations, nth=st.none() | st.integers(1, 12))
def test_whatever_becomes_of_the_copy_the_primary_is_what_was_written(
    operations: list[bytes | str], nth: int | None, memory_directory: str, local_directory: str
) -> None:
    before = files_below(local_directory)
    with faulty_file_system(local_directory) as copy:
        written = b""
        with DuplicatingCheckpointOutputStream(
            file_stream(memory_directory), file_stream(copy.directory)
        ) as stream:
            copy.calls.clear()
            if nth is not None:
                copy.before(ANY_CALL, StorageUnavailableError("out of reach"), nth)
            for operation in operations:
                if isinstance(operation, str):
                    getattr(stream, operation)()
                else:
                    stream.write(operation)
                    written += operation
                assert stream.tell() == len(written)
            primary = stream.close_and_get_handle()
            assert content_of(primary) == written
            try:
                secondary = stream.close_and_get_secondary_handle()
            except StorageUnavailableError:
                assert nth is not None
                assert files_below(local_directory) == before
            else:
                copy.clear()
                assert content_of(secondary) == written
