"""Requirements of the streams of every checkpoint storage."""

import gc
import sys
import threading
import uuid
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.errors import (
    CheckpointError,
    StreamClosedError,
)
from holdfast.locations.coordination import complete_checkpoint
from holdfast.locations.file_systems import file_system_for
from holdfast.locations.handles import StreamStateHandle
from holdfast.locations.storages import (
    CheckpointedStateScope,
    CheckpointStorage,
    CheckpointStorageAccess,
    CheckpointStorageLocation,
    CheckpointStreamFactory,
    load_checkpoint,
)
from holdfast.testing.interleaving import Interleaved, at_every_step, code_of
from holdfast.testing.values import metadata_of

EXCLUSIVE = CheckpointedStateScope.EXCLUSIVE

SIZES = [1, 100, 20 << 10, (20 << 10) + 1, 100_000]
"""Around the threshold below which a state is stored in its handle, and far above it."""

both_streams = pytest.mark.parametrize("kind", ["state", "metadata"])


def read(handle: StreamStateHandle) -> bytes:
    with handle.open_input_stream() as stream:
        return stream.read()


def store(
    factory: CheckpointStreamFactory, state: bytes, scope: CheckpointedStateScope = EXCLUSIVE
) -> StreamStateHandle:
    with factory.create_checkpoint_state_output_stream(scope) as stream:
        stream.write(state)
        handle = stream.close_and_get_handle()
    assert handle is not None
    return handle


def stream_of(location: CheckpointStorageLocation, kind: str) -> Any:
    if kind == "metadata":
        return location.create_metadata_output_stream()
    return location.create_checkpoint_state_output_stream(EXCLUSIVE)


def finish(stream: Any) -> Any:
    """Make the success call of either kind of stream."""
    if hasattr(stream, "close_and_get_handle"):
        return stream.close_and_get_handle()
    return stream.close_and_finalize_checkpoint()


class CheckpointStreamSuite:
    """Requirements of streams; `CheckpointStorageContract` includes them."""

    @pytest.fixture
    def storage(self) -> CheckpointStorage:
        """Return an empty storage, a new one for each test."""
        raise NotImplementedError

    def files(self, storage: CheckpointStorage) -> set[str]:
        """Return the URIs of all files of the storage, hidden ones too, without using it."""
        raise NotImplementedError

    @pytest.fixture
    def access(self, storage: CheckpointStorage) -> CheckpointStorageAccess:
        """The storage of a job, ready for checkpoints."""
        access = storage.create_checkpoint_storage("job")
        access.initialize_base_locations_for_checkpoint()
        return access

    @pytest.fixture
    def location(self, access: CheckpointStorageAccess) -> CheckpointStorageLocation:
        """A pending checkpoint, 1 of that job."""
        return access.initialize_location_for_checkpoint(1)

    @pytest.fixture
    def target(self) -> Iterator[str]:
        """Yield the URI of an empty directory for savepoints, and empty it afterwards."""
        directory = f"memory:///{uuid.uuid4().hex}"
        file_system_for(directory).prepare_directory(directory)
        yield directory
        file_system_for(directory).delete_tree(directory)

    # State streams

    def test_flushing_a_state_changes_neither_its_bytes_nor_its_length(
        self, location: CheckpointStorageLocation
    ) -> None:
        for size in (0, 100, 100_000):
            with location.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
                stream.sync()  # an empty stream
                stream.write(bytes(size))
                for flush in (stream.flush, stream.flush_to_file, stream.sync):
                    flush()
                    assert stream.tell() == size
                stream.write(b"end")
                handle = stream.close_and_get_handle()
                for flush in (stream.flush, stream.flush_to_file, stream.sync):
                    with pytest.raises(StreamClosedError):
                        flush()
            assert handle is not None
            assert read(handle) == bytes(size) + b"end"

    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("scope", CheckpointedStateScope)
    def test_handle_returns_written_bytes(
        self, location: CheckpointStorageLocation, size: int, scope: CheckpointedStateScope
    ) -> None:
        content = bytes(i % 251 for i in range(size))
        with location.create_checkpoint_state_output_stream(scope) as stream:
            assert stream.write(content[: size // 3]) == size // 3
            stream.write(memoryview(content)[size // 3 :])
            assert stream.tell() == size
            handle = stream.close_and_get_handle()
        assert handle is not None
        assert handle.size == size
        assert read(handle) == content
        with handle.open_input_stream() as stored:
            assert stored.seek(size // 2) == size // 2
            assert stored.read() == content[size // 2 :]

    def test_stream_position_is_exact_after_each_write(
        self, location: CheckpointStorageLocation
    ) -> None:
        with location.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
            expected = 0
            for size in (0, 1, 5_000, 20_000, 1, 70_000, 65_536, 3):
                assert stream.tell() == expected
                stream.write(bytes(size))
                expected += size
            assert stream.tell() == expected

    @both_streams
    def test_writes_are_counted_in_bytes(
        self, location: CheckpointStorageLocation, kind: str
    ) -> None:
        longs = array("q", range(3))
        with stream_of(location, kind) as stream:
            assert stream.write(memoryview(longs)) == 24
            result = finish(stream)
        handle = result if kind == "state" else result.metadata_handle
        assert read(handle) == longs.tobytes()

    @pytest.mark.parametrize("writes", [[], [b""], [b"", b""]])
    def test_a_state_of_no_bytes_has_no_handle_and_its_stream_is_closed(
        self, storage: CheckpointStorage, location: CheckpointStorageLocation, writes: list[bytes]
    ) -> None:
        stream = stream_of(location, "state")
        for part in writes:
            assert stream.write(part) == 0
        assert stream.close_and_get_handle() is None
        with pytest.raises(StreamClosedError):
            stream.close_and_get_handle()
        assert self.files(storage) == set()

    def test_handles_can_be_discarded_twice(
        self, storage: CheckpointStorage, location: CheckpointStorageLocation
    ) -> None:
        stream = stream_of(location, "state")
        stream.write(bytes(100_000))
        handle = stream.close_and_get_handle()
        for _ in range(2):
            handle.discard_state()
        assert self.files(storage) == set()

    # Both kinds of streams

    @both_streams
    @pytest.mark.parametrize("size", [0, 1, 100_000])
    def test_a_stream_without_its_success_call_leaves_nothing(
        self, storage: CheckpointStorage, location: CheckpointStorageLocation, kind: str, size: int
    ) -> None:
        with stream_of(location, kind) as stream:
            stream.write(bytes(size))
        for _ in range(2):
            stream.close()
        assert self.files(storage) == set()
        with pytest.raises(StreamClosedError):
            stream.write(b"1")
        with pytest.raises(StreamClosedError):
            finish(stream)

    @both_streams
    def test_an_error_in_the_block_discards_and_comes_through(
        self, storage: CheckpointStorage, location: CheckpointStorageLocation, kind: str
    ) -> None:
        def fail() -> None:
            with stream_of(location, kind) as stream:
                stream.write(bytes(100_000))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert self.files(storage) == set()

    @both_streams
    def test_success_is_final(
        self, storage: CheckpointStorage, location: CheckpointStorageLocation, kind: str
    ) -> None:
        with stream_of(location, kind) as stream:
            stream.write(bytes(100_000))
            finish(stream)
        after = self.files(storage)
        stream.close()
        assert self.files(storage) == after
        with pytest.raises(StreamClosedError):
            finish(stream)
        with pytest.raises(StreamClosedError):
            stream.write(b"1")
        assert self.files(storage) == after

    @both_streams
    def test_a_forgotten_stream_warns_and_leaves_nothing(
        self, storage: CheckpointStorage, location: CheckpointStorageLocation, kind: str
    ) -> None:
        streams = [stream_of(location, kind)]
        streams[0].write(bytes(100_000))
        with pytest.warns(ResourceWarning, match="neither kept nor closed"):
            streams.clear()
        assert self.files(storage) == set()

    @pytest.mark.filterwarnings("error::ResourceWarning")
    def test_unclosed_stream_leaves_no_file_if_warnings_are_errors(
        self,
        storage: CheckpointStorage,
        location: CheckpointStorageLocation,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        raised: list[object] = []
        monkeypatch.setattr(sys, "unraisablehook", lambda args: raised.append(args.exc_type))
        stream = stream_of(location, "state")
        stream.write(bytes(100_000))
        del stream
        gc.collect()
        assert raised == [ResourceWarning]
        assert self.files(storage) == set()

    def test_metadata_of_no_bytes_is_a_checkpoint(
        self, access: CheckpointStorageAccess, location: CheckpointStorageLocation
    ) -> None:
        completed = location.create_metadata_output_stream().close_and_finalize_checkpoint()
        assert completed.metadata_handle.size == 0
        assert read(completed.metadata_handle) == b""
        assert list(access.completed_checkpoints()) == [1]

    @both_streams
    def test_close_at_any_step_of_the_success_call_discards_all_or_nothing(
        self, storage: CheckpointStorage, access: CheckpointStorageAccess, kind: str
    ) -> None:
        content = bytes(50_000)

        def prepare() -> tuple[Callable[[], Any], Callable[[], None]]:
            for completed in access.completed_checkpoints().values():
                completed.dispose_storage_location()
            stream = stream_of(access.initialize_location_for_checkpoint(1), kind)
            stream.write(content)
            return (lambda: finish(stream)), stream.close

        def check(outcome: Interleaved) -> None:
            if outcome.error is None:
                assert outcome.result is not None, "no handle was returned"
                handle = getattr(outcome.result, "metadata_handle", outcome.result)
                assert read(handle) == content
                handle.discard_state()
            else:
                assert isinstance(outcome.error, StreamClosedError)
            if not access.completed_checkpoints():
                assert self.files(storage) == set()

        location = access.initialize_location_for_checkpoint(1)
        with stream_of(location, kind) as stream:
            code = code_of(storage, access, location, stream)
        location.dispose_on_failure()
        at_every_step(prepare, check, code=code)

    def test_close_from_another_thread_stops_the_writer(
        self, storage: CheckpointStorage, location: CheckpointStorageLocation
    ) -> None:
        # Small writes, so that a storage with a limit does not reach it before the other thread.
        stream = stream_of(location, "state")
        written, over = threading.Event(), threading.Event()

        def write_until_stopped() -> None:
            try:
                while not over.is_set():
                    stream.write(b"1")
                    written.set()
                stream.write(b"1")
            finally:
                written.set()

        with ThreadPoolExecutor(1) as pool:
            writer = pool.submit(write_until_stopped)
            written.wait()
            stream.close()
            over.set()
            with pytest.raises(StreamClosedError):
                writer.result()
        assert self.files(storage) == set()

    def test_errors_of_a_gone_checkpoint_are_ours(
        self, location: CheckpointStorageLocation
    ) -> None:
        done = complete_checkpoint(location, metadata_of())
        done.discard()
        with pytest.raises(CheckpointError):
            load_checkpoint(done.location)
