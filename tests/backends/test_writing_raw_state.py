"""Raw state that is written: partitions, key groups, and the stream in the user's hands."""

import io
import pickle
from collections.abc import Callable

import pytest
from contracts.files import files_below
from contracts.raw_state import (
    THREE,
    Make,
    file_stream,
    groups_of,
    partitions_of,
    read_groups,
    read_partitions,
)
from contracts.values import read

from holdfast.backends import (
    KeyedStateCheckpointOutputStream,
    KeyGroupRange,
    OperatorStateCheckpointOutputStream,
)
from holdfast.errors import (
    InvalidRequestError,
    StorageUnavailableError,
    StreamClosedError,
)
from holdfast.locations.adapters import (
    CheckpointStateOutputStream,
)
from holdfast.testing import Faults


class TestWritingOperatorState:
    def test_raw_operator_state_is_read_back_by_partition(self, make: Make) -> None:
        out = OperatorStateCheckpointOutputStream(make())
        for n in range(3):
            assert out.number_of_partitions == n
            out.start_new_partition()
            for digit in range(n + 1):
                assert out.write(b"%d%d" % (n, digit)) == 2
        assert out.number_of_partitions == 3
        handle = out.close_and_get_handle()
        assert handle is not None
        assert handle.partitions == ((0, 2), (2, 4), (6, 6))
        assert handle.size == 12
        assert read_partitions(handle) == [b"00", b"1011", b"202122"]

    def test_bytes_without_a_start_are_one_partition(self, make: Make) -> None:
        out = OperatorStateCheckpointOutputStream(make())
        out.write(b"")
        assert out.number_of_partitions == 0
        out.write(b"x" * 100)
        out.write(b"y")
        assert out.number_of_partitions == 1
        handle = out.close_and_get_handle()
        assert handle is not None
        assert handle.partitions == ((0, 101),)
        assert read_partitions(handle) == [b"x" * 100 + b"y"]

    def test_bytes_before_the_first_start_are_a_partition_too(self, make: Make) -> None:
        out = OperatorStateCheckpointOutputStream(make())
        out.write(b"before")
        out.start_new_partition()
        out.write(b"after")
        handle = out.close_and_get_handle()
        assert handle is not None
        assert read_partitions(handle) == [b"before", b"after"]

    def test_stream_with_bytes_is_continued(self, make: Make) -> None:
        stream = make()
        stream.write(b"the system's")
        out = OperatorStateCheckpointOutputStream(stream)
        assert out.tell() == 0
        out.write(b"the user's")
        assert out.tell() == 10
        handle = out.close_and_get_handle()
        assert handle is not None
        assert handle.partitions == ((12, 10),)
        assert read_partitions(handle) == [b"the user's"]

    def test_partitions_may_be_empty(self, make: Make) -> None:
        handle = partitions_of(make(), b"", b"a", b"", b"")
        assert read_partitions(handle) == [b"", b"a", b"", b""]

    @pytest.mark.parametrize("starts", [0, 1, 3])
    def test_no_bytes_make_no_handle_and_no_file(self, starts: int, local_directory: str) -> None:
        stream = file_stream(local_directory)
        out = OperatorStateCheckpointOutputStream(stream)
        for _ in range(starts):
            out.start_new_partition()
        assert out.close_and_get_handle() is None
        assert files_below(local_directory) == set()
        with pytest.raises(StreamClosedError):
            stream.write(b"1")

    def test_complete_stream_refuses_partitions(self, make: Make) -> None:
        out = OperatorStateCheckpointOutputStream(make())
        out.write(b"1")
        out.close_and_get_handle()
        for call in (out.start_new_partition, lambda: out.write(b"2"), out.close_and_get_handle):
            with pytest.raises(StreamClosedError):
                call()


class TestWritingKeyedState:
    @pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1,)])
    def test_raw_keyed_state_is_read_back_by_key_group(
        self, order: tuple[int, ...], make: Make
    ) -> None:
        parts = {key_group: b"%d" % key_group * 100 for key_group in order}
        handle = groups_of(make(), THREE, parts)
        assert handle is not None
        assert handle.key_groups == (0, 2)
        assert read_groups(handle) == parts
        assert list(read_groups(handle)) == list(order), "read front to back"
        for key_group, partition in enumerate(handle.partitions):
            at = order.index(key_group) * 100 if key_group in order else None
            assert partition == (None if at is None else (at, 100))

    def test_key_group_may_be_empty(self, make: Make) -> None:
        parts = {6: b"", 5: b"x", 7: b""}
        handle = groups_of(make(), KeyGroupRange(5, 9), parts)
        assert handle is not None
        assert handle.partitions == ((0, 1), (0, 0), (1, 0), None, None)
        assert read_groups(handle) == parts

    def test_no_bytes_make_no_handle(self, make: Make) -> None:
        assert groups_of(make(), THREE, {}) is None
        assert groups_of(make(), THREE, {2: b"", 1: b""}) is None

    def test_started_and_finished_key_groups_are_known(self, make: Make) -> None:
        out = KeyedStateCheckpointOutputStream(make(), THREE)
        assert out.key_group_range == THREE
        assert out.current_key_group is None
        started: list[int] = []
        for key_group in (2, 0, 1):
            assert not out.is_key_group_started(key_group)
            out.start_new_key_group(key_group)
            out.write(b"1")
            assert out.current_key_group == key_group
            assert out.is_key_group_started(key_group)
            assert not out.is_key_group_finished(key_group)
            assert all(map(out.is_key_group_finished, started))
            started.append(key_group)
        out.close_and_get_handle()
        assert all(map(out.is_key_group_finished, started))
        assert not out.is_key_group_finished(3)
        for key_group in started:
            with pytest.raises(StreamClosedError):
                out.start_new_key_group(key_group)

    def test_key_group_of_another_subtask_is_refused_with_a_hint(self, make: Make) -> None:
        with make() as stream:
            out = KeyedStateCheckpointOutputStream(stream, KeyGroupRange(3, 5))
            for key_group in (2, 6, 4711, -1):
                with pytest.raises(InvalidRequestError, match=f"{key_group} .*deterministic"):
                    out.start_new_key_group(key_group)
            assert out.current_key_group is None

    def test_key_group_is_written_once(self, make: Make) -> None:
        out = KeyedStateCheckpointOutputStream(make(), THREE)
        for key_group in (1, 0):
            out.start_new_key_group(key_group)
            out.write(b"%d" % key_group)
        for key_group in (0, 1):
            with pytest.raises(InvalidRequestError, match=f"{key_group} was already started"):
                out.start_new_key_group(key_group)
        out.write(b"on")
        handle = out.close_and_get_handle()
        assert handle is not None
        assert read_groups(handle) == {1: b"1", 0: b"0on"}

    def test_key_group_can_be_a_number_of_numpy(self, make: Make) -> None:
        numpy = pytest.importorskip("numpy")
        handle = groups_of(make(), THREE, {numpy.int32(1): b"1"})
        assert handle is not None
        assert read_groups(handle) == {1: b"1"}

    def test_bytes_before_the_first_key_group_are_refused(self, make: Make) -> None:
        out = KeyedStateCheckpointOutputStream(make(), THREE)
        with pytest.raises(InvalidRequestError, match="start"):
            out.write(b"lost")
        out.start_new_key_group(0)
        out.write(b"kept")
        handle = out.close_and_get_handle()
        assert handle is not None
        assert read(handle.stream) == b"kept"


def operator_output(
    stream: CheckpointStateOutputStream,
) -> OperatorStateCheckpointOutputStream:
    out = OperatorStateCheckpointOutputStream(stream)
    out.start_new_partition()
    return out


def keyed_output(stream: CheckpointStateOutputStream) -> KeyedStateCheckpointOutputStream:
    out = KeyedStateCheckpointOutputStream(stream, THREE)
    out.start_new_key_group(0)
    return out


Output = OperatorStateCheckpointOutputStream | KeyedStateCheckpointOutputStream
OUTPUTS = pytest.mark.parametrize("output", [operator_output, keyed_output])


@OUTPUTS
class TestTheStreamInTheUsersHands:
    def test_closing_it_does_nothing(
        self, output: Callable[[CheckpointStateOutputStream], Output], make: Make
    ) -> None:
        out = output(make())
        with out:
            out.write(b"1")
        out.close()
        out.write(b"2")
        assert not out.closed
        handle = out.close_and_get_handle()
        assert handle is not None
        assert read(handle.stream) == b"12"
        out.close()
        del out
        assert read(handle.stream) == b"12"

    def test_it_is_a_binary_file_without_seek(
        self, output: Callable[[CheckpointStateOutputStream], Output], make: Make
    ) -> None:
        out = output(make())
        assert out.writable()
        assert not out.readable()
        assert not out.seekable()
        pickle.dump({"a": 1}, out)
        with io.TextIOWrapper(out, write_through=True) as text:  # type: ignore[type-var]
            text.write("größe")
        out.flush()
        out.sync()
        handle = out.close_and_get_handle()
        assert handle is not None
        assert read(handle.stream) == pickle.dumps({"a": 1}) + "größe".encode()

    def test_buffers_close_after_the_system_ended_the_stream(
        self, output: Callable[[CheckpointStateOutputStream], Output], make: Make
    ) -> None:
        stream = make()
        kept, aborted = output(make()), output(stream)
        buffers = [io.BufferedWriter(kept), io.BufferedWriter(aborted)]  # type: ignore[type-var]
        texts = [io.TextIOWrapper(buffer) for buffer in buffers]
        assert not any(file.closed for file in (*buffers, *texts))
        kept.close_and_get_handle()
        aborted.end()
        stream.close()
        assert all(file.closed for file in (*buffers, *texts))

    def test_system_discards_it_by_closing_its_own_stream(
        self,
        output: Callable[[CheckpointStateOutputStream], Output],
        local_directory: str,
    ) -> None:
        stream = file_stream(local_directory, buffer_bytes=0)
        out = output(stream)
        out.write(b"1")
        stream.close()
        for call in (lambda: out.write(b"2"), out.flush, out.sync, out.close_and_get_handle):
            with pytest.raises(StreamClosedError):
                call()
        assert files_below(local_directory) == set()

    @pytest.mark.parametrize("call", ["create", "write", "commit"])
    def test_failed_store_leaves_no_file_and_no_handle(
        self,
        output: Callable[[CheckpointStateOutputStream], Output],
        call: str,
        faults: Faults,
    ) -> None:
        out = output(file_stream(faults.directory))
        faults.before(call, StorageUnavailableError("out of reach"))
        out.write(b"1")
        with pytest.raises(StorageUnavailableError):
            out.close_and_get_handle()
        with pytest.raises(StreamClosedError):
            out.close_and_get_handle()
        assert files_below(faults.inner_directory) == set()
