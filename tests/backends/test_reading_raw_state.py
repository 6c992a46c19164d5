"""Raw state that is read: in any order and steps, by formats that seek, and damaged."""

import io
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from contracts.raw_state import (
    THREE,
    Make,
    file_stream,
    groups_of,
    memory_stream,
    partitions_of,
    read_groups,
    read_partitions,
)
from hypothesis import given
from hypothesis import strategies as st

from holdfast.backends import (
    KeyGroupRange,
    OperatorStateCheckpointOutputStream,
    StatePartitionStream,
)
from holdfast.backends.snapshot import raw_key_groups, raw_operator_partitions
from holdfast.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
)
from holdfast.locations.adapters import (
    ByteStreamStateHandle,
    CheckpointStateOutputStream,
    FileStateHandle,
    StreamStateHandle,
)
from holdfast.locations.handles import KeyGroupsStateHandle, RawOperatorStateHandle
from holdfast.testing import Faults

TABLE = pa.table({"n": range(1000), "text": [str(n) for n in range(1000)]})


def write_arrow(sink: pa.PythonFile) -> None:
    with pa.ipc.new_file(sink, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=100)


@pytest.mark.parametrize(
    ("write", "read_back"),
    [
        (write_arrow, lambda source: pa.ipc.open_file(source).read_all()),
        (lambda sink: pq.write_table(TABLE, sink), pq.read_table),
    ],
    ids=["Arrow", "Parquet"],
)
def test_formats_with_positions_can_be_in_any_partition(
    write: Callable[[Any], None], read_back: Callable[[Any], pa.Table], make: Make
) -> None:
    out = OperatorStateCheckpointOutputStream(make())
    for n in range(3):
        out.start_new_partition()
        assert out.tell() == 0
        if n == 0:
            out.write(b"odd")
        else:
            with pa.PythonFile(out, mode="w") as sink:
                write(sink)
    handle = out.close_and_get_handle()
    assert handle is not None
    contents = [
        stream.read() if n == 0 else read_back(pa.PythonFile(stream, mode="r"))
        for n, stream in enumerate(raw_operator_partitions([handle]))
    ]
    assert contents == [b"odd", TABLE, TABLE]


class TestReading:
    def test_stream_ends_with_its_partition(self, make: Make) -> None:
        handle = partitions_of(make(), b"abc", b"defg", b"h")
        for stream, expected in zip(
            raw_operator_partitions([handle]), [b"abc", b"defg", b"h"], strict=True
        ):
            assert stream.read(2) == expected[:2]
            assert stream.read(100) == expected[2:]
            assert stream.read(1) == b""
            assert stream.readinto(bytearray(10)) == 0
            assert stream.read() == b""

    def test_stream_can_be_sought_in_and_not_be_left(self, make: Make) -> None:
        handle = partitions_of(make(), b"before", b"0123456789", b"after")
        for n, stream in enumerate(raw_operator_partitions([handle])):
            if n != 1:
                continue
            assert stream.seekable()
            assert not stream.writable()
            assert stream.seek(-3, io.SEEK_END) == 7
            assert stream.read() == b"789"
            assert stream.seek(4) == stream.tell() == 4
            assert stream.read(2) == b"45"
            assert stream.seek(-5, io.SEEK_CUR) == 1
            assert stream.read(1) == b"1"
            assert stream.seek(100) == 100
            assert stream.read() == b""
            for whence in (io.SEEK_CUR, io.SEEK_END, io.SEEK_SET):
                with pytest.raises(ValueError, match=r"position|negative"):
                    stream.seek(-1000, whence)
            assert stream.seek(0) == 0
            assert stream.read() == b"0123456789"

    def test_text_is_read_by_line(self, make: Make) -> None:
        handle = partitions_of(make(), b"a\nb\n", b"c")
        streams = raw_operator_partitions([handle])
        assert [list(io.TextIOWrapper(stream)) for stream in streams] == [["a\n", "b\n"], ["c"]]

    def test_several_handles_are_read_one_after_the_other(self, make: Make) -> None:
        handles = [partitions_of(make(), *parts) for parts in ([b"a", b"b"], [b"c"])]
        assert read_partitions(*handles) == [b"a", b"b", b"c"]
        assert read_partitions(*handles[::-1]) == [b"c", b"a", b"b"]
        assert read_partitions() == []
        keyed = [groups_of(make(), KeyGroupRange(n, n), {n: b"%d" % n}) for n in (7, 3)]
        assert read_groups(*filter(None, keyed)) == {7: b"7", 3: b"3"}

    def test_only_partitions_of_the_handle_are_read(self, make: Make) -> None:
        handle = partitions_of(make(), b"ab", b"cd", b"ef")
        some = RawOperatorStateHandle((handle.partitions[2], handle.partitions[0]), handle.stream)
        assert read_partitions(some) == [b"ef", b"ab"]

    def test_stream_is_closed_when_the_next_one_is_asked_for(self, make: Make) -> None:
        handle = partitions_of(make(), b"ab", b"cd")
        streams = list(raw_operator_partitions([handle]))
        assert len(streams) == 2
        for stream in streams:
            with pytest.raises(ValueError, match="closed"):
                stream.read()

    def test_file_is_opened_by_the_first_read_and_once(self, faults: Faults) -> None:
        handles = [partitions_of(file_stream(faults.directory), b"ab", b"", b"cd")] * 2
        faults.calls.clear()
        for _ in raw_operator_partitions(handles):
            pass
        assert faults.calls == []
        assert read_partitions(*handles) == [b"ab", b"", b"cd"] * 2
        assert faults.calls.count("open") == 2

    def test_missing_file_is_not_found_on_read(self, local_directory: str) -> None:
        handle = groups_of(file_stream(local_directory), THREE, {1: b"x", 2: b"y"})
        assert handle is not None
        handle.discard_state()
        streams = raw_key_groups([handle])
        for _ in range(2):
            with pytest.raises(CheckpointNotFoundError):
                next(streams).read()

    @pytest.mark.parametrize("failure", ["read", "break", "raise", "leave"])
    def test_files_are_closed_whatever_happens(
        self, failure: str, local_directory: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        handle = groups_of(file_stream(local_directory), THREE, {1: b"x", 2: b"y"})
        assert handle is not None
        opened: list[Any] = []
        real = FileStateHandle.open_input_stream

        def open_and_record(self: FileStateHandle) -> Any:
            opened.append(real(self))
            return opened[-1]

        monkeypatch.setattr(FileStateHandle, "open_input_stream", open_and_record)
        with suppress(ZeroDivisionError), closing(raw_key_groups([handle])) as streams:
            for stream in streams:
                assert stream.read(1)
                if failure == "break":
                    break
                if failure == "raise":
                    raise ZeroDivisionError
                if failure == "leave":
                    stream.close()
        assert [file.closed for file in opened] == [True]
        assert stream.closed


def handle_of(
    kind: str, stream: StreamStateHandle, partition: tuple[int, int]
) -> Iterator[StatePartitionStream]:
    if kind == "operator":
        yield from raw_operator_partitions([RawOperatorStateHandle((partition,), stream)])
    else:
        yield from raw_key_groups([KeyGroupsStateHandle((3, 3), (partition,), stream)])


READS: list[Callable[[Any], Any]] = [
    lambda stream: stream.read(),
    lambda stream: stream.read(1),
    lambda stream: stream.readline(),
    lambda stream: stream.readinto(bytearray(5)),
]


@pytest.mark.parametrize("kind", ["operator", "keyed"])
class TestCorruption:
    @pytest.mark.parametrize("partition", [(0, 11), (11, 1), (10**15, 10**15), (-1, 2), (1, -1)])
    @pytest.mark.parametrize("read_some", READS, ids=["all", "one", "line", "into"])
    def test_partition_outside_of_its_stream_is_corrupt(
        self, kind: str, partition: tuple[int, int], read_some: Callable[[Any], Any], make: Make
    ) -> None:
        stream = partitions_of(make(), b"0123456789").stream
        for handle in handle_of(kind, stream, partition):
            with pytest.raises(CheckpointCorruptedError) as caught:
                read_some(handle)
            assert caught.value.location == getattr(stream, "uri", "")

    @pytest.mark.parametrize("verified", [True, False])
    def test_truncated_file_is_corrupt(
        self,
        kind: str,
        verified: bool,  # noqa: FBT001
        local_directory: str,
    ) -> None:
        stream = partitions_of(file_stream(local_directory), b"x" * 1000).stream
        assert isinstance(stream, FileStateHandle)
        if not verified:
            stream = FileStateHandle(stream.uri, stream.size)
        path = stream.uri.removeprefix("file://")
        for length in (999, 500, 0):
            with open(path, "r+b") as file:
                file.truncate(length)
            for handle in handle_of(kind, stream, (100, 900)):
                with pytest.raises(CheckpointCorruptedError) as caught:
                    handle.read()
                assert caught.value.location == stream.uri

    def test_byte_changed_anywhere_is_corrupt(self, kind: str, local_directory: str) -> None:
        stream = partitions_of(file_stream(local_directory), b"x" * 1000).stream
        assert isinstance(stream, FileStateHandle)
        with open(stream.uri.removeprefix("file://"), "r+b") as file:
            file.seek(300)
            file.write(b"y")
        for handle in handle_of(kind, stream, (100, 900)):
            with pytest.raises(CheckpointCorruptedError):
                handle.read()

    def test_truncated_state_in_a_handle_is_corrupt(self, kind: str) -> None:
        for handle in handle_of(kind, ByteStreamStateHandle(b"12345"), (3, 3)):
            with pytest.raises(CheckpointCorruptedError):
                handle.read()


@pytest.mark.parametrize("partitions", [(), ((0, 1),), ((0, 1), None, (1, 1), None)])
def test_partition_count_unlike_key_group_count_is_corrupt(
    partitions: tuple[tuple[int, int] | None, ...],
) -> None:
    handle = KeyGroupsStateHandle((3, 5), partitions, ByteStreamStateHandle(b"12"))
    with pytest.raises(CheckpointCorruptedError):
        list(raw_key_groups([handle]))


# Parts that are larger than write buffers, read buffers and blocks of a checksum; each has
# distinct bytes, so that a neighbour's show.
_sizes = st.one_of(
    st.integers(0, 40), st.sampled_from([8191, 8192, 8193, 65536, (1 << 20) - 1, 1 << 20])
)
_parts = st.lists(_sizes, max_size=8).map(
    lambda sizes: [bytes([n + 1]) * size for n, size in enumerate(sizes)]
)
_steps = st.sampled_from([1 << 21, 100_000, 8192, 4099])
_places = st.sampled_from(["memory", "file"])


def stream_at(place: str, directory: str) -> CheckpointStateOutputStream:
    return memory_stream() if place == "memory" else file_stream(directory)


def in_steps(stream: io.BufferedIOBase, step: int) -> bytes:
    return b"".join(iter(lambda: stream.read(step), b""))


@given(parts=_parts, place=_places, step=_steps, handles=st.integers(1, 2), implicit=st.booleans())
def test_any_partitions_come_back(
    *,
    parts: list[bytes],
    place: str,
    step: int,
    handles: int,
    implicit: bool,
    local_directory: str,
) -> None:
    written = []
    for _ in range(handles):
        out = OperatorStateCheckpointOutputStream(stream_at(place, local_directory))
        for n, part in enumerate(parts):
            if n or not (implicit and part):
                out.start_new_partition()
            for at in range(0, len(part), step):
                out.write(part[at : at + step])
        written.append(out.close_and_get_handle())
    contents = [
        in_steps(partition, step) for partition in raw_operator_partitions(filter(None, written))
    ]
    assert contents == (parts * handles if any(parts) else [])


@given(
    data=st.data(),
    parts=_parts,
    first=st.integers(0, 32760),
    beyond=st.integers(0, 5),
    place=_places,
    step=_steps,
)
def test_any_key_groups_come_back(
    *,
    data: st.DataObject,
    parts: list[bytes],
    first: int,
    beyond: int,
    place: str,
    step: int,
    local_directory: str,
) -> None:
    key_groups = KeyGroupRange(first, first + len(parts) + beyond)
    order = data.draw(st.permutations(list(key_groups)))[: len(parts)]
    expected = dict(zip(order, parts, strict=True))
    handle = groups_of(stream_at(place, local_directory), key_groups, expected)
    if not any(parts):
        assert handle is None
        return
    assert handle is not None
    contents = {group.key_group: in_steps(group, step) for group in raw_key_groups([handle])}
    assert contents == expected


@given(
    parts=st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=5),
    calls=st.lists(
        st.tuples(
            st.sampled_from(["read", "readinto", "seek", "end", "readline", "peek", "read1"]),
            st.integers(0, 40),
        ),
        max_size=10,
    ),
    place=_places,
)
def test_stream_behaves_as_a_file_of_its_bytes(
    parts: list[bytes], calls: list[tuple[str, int]], place: str, local_directory: str
) -> None:
    handle = partitions_of(stream_at(place, local_directory), *parts)
    streams = raw_operator_partitions([handle])
    for stream, part in zip(streams, parts, strict=True):
        file = io.BufferedReader(io.BytesIO(part))
        for call, n in calls:
            assert _outcome(stream, call, n) == _outcome(file, call, n)
            assert stream.tell() == file.tell()


def _outcome(stream: "io.BufferedReader[Any]", call: str, n: int) -> object:
    if call == "readinto":
        buffer = bytearray(n)
        return stream.readinto(buffer), buffer
    if call == "end":
        return stream.seek(-min(n, stream.seek(0, io.SEEK_END)), io.SEEK_END)
    return getattr(stream, call)(n)
