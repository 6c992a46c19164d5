import struct
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from contracts.elements import VALUES, backend_with, list_state, snapshot_of

from holdfast.backends import OperatorStateBackend
from holdfast.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    StateMigrationError,
)
from holdfast.locations import (
    ByteStreamStateHandle,
    CheckpointStreamFactory,
    FileStateHandle,
    OperatorStateHandle,
    OperatorStateMode,
    StatePartitions,
    checkpoint_storage,
)


def on_disk(directory: str) -> CheckpointStreamFactory:
    access = checkpoint_storage(directory).create_checkpoint_storage("job")
    return access.initialize_location_for_checkpoint(1)


@pytest.mark.parametrize(("element_type", "values"), VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("place", ["memory", "file"])
def test_a_restored_state_is_what_was_stored(
    element_type: Any, values: list[Any], place: str, local_directory: str
) -> None:
    backend = backend_with(s=(element_type, values))
    list_state(backend, "s", element_type).add_all(pa.array(values, element_type)[1:])
    if place == "memory":
        handle = snapshot_of(backend)
    else:
        handle = snapshot_of(backend, lambda: on_disk(local_directory))
    restored = OperatorStateBackend.restore([handle])
    state = list_state(restored, "s", element_type)
    assert state.get() == values + values[1:]
    assert state.type == element_type


def test_a_million_longs_go_to_a_file_and_back(local_directory: str) -> None:
    values = pa.array(range(1_000_000))
    backend = backend_with(s=(pa.int64(), values))
    handle = snapshot_of(backend, lambda: on_disk(local_directory))
    assert isinstance(handle.stream, FileStateHandle)
    assert 8_000_000 < handle.size < 8_100_000
    assert "0" * 100 not in repr(handle)
    state = list_state(OperatorStateBackend.restore([handle]))
    assert state.to_arrow().equals(pa.chunked_array([values]))


def test_the_state_of_several_handles_is_appended_in_order() -> None:
    handles = [snapshot_of(backend_with(s=(pa.int64(), values))) for values in ([1, 2], [], [3])]
    assert list_state(OperatorStateBackend.restore(handles)).get() == [1, 2, 3]
    assert list_state(OperatorStateBackend.restore(handles[::-1])).get() == [3, 1, 2]


def test_dictionaries_of_several_handles_are_merged() -> None:
    kinds = pa.dictionary(pa.int32(), pa.string())
    chunks = [pa.array(values).dictionary_encode() for values in (["a", "b"], ["c", "a"])]
    backend = backend_with(s=(kinds, pa.chunked_array(chunks)))
    handle = snapshot_of(backend)
    restored = OperatorStateBackend.restore([handle, snapshot_of(backend_with(s=(kinds, ["d"])))])
    assert list_state(restored, "s", kinds).get() == ["a", "b", "c", "a", "d"]
    again = OperatorStateBackend.restore([snapshot_of(restored)])
    assert list_state(again, "s", kinds).get() == ["a", "b", "c", "a", "d"]


@pytest.mark.parametrize(
    "element_type",
    [
        pa.struct([("kind", pa.dictionary(pa.int32(), pa.string()))]),
        pa.list_(pa.dictionary(pa.int32(), pa.string())),
        pa.dictionary(pa.int32(), pa.int64()),
    ],
    ids=str,
)
def test_chunks_with_nested_dictionaries_are_stored(element_type: Any) -> None:
    def value(name: str) -> Any:
        if pa.types.is_struct(element_type):
            return {"kind": name}
        return [name] if pa.types.is_list(element_type) else ord(name)

    backend = OperatorStateBackend()
    state = list_state(backend, "s", element_type)
    for names in ("ab", "ca"):
        state.add_all([value(name) for name in names])
    restored = OperatorStateBackend.restore([snapshot_of(backend)])
    assert list_state(restored, "s", element_type).get() == [value(name) for name in "abca"]


def test_only_the_elements_that_count_are_restored() -> None:
    handle = snapshot_of(backend_with(s=(pa.int64(), range(10)), t=(pa.string(), ["x"])))

    def part(first: int, count: int) -> OperatorStateHandle:
        cut = msgspec.structs.replace(handle.states["s"], first=first, count=count)
        return OperatorStateHandle({"s": cut}, handle.stream)

    restored = OperatorStateBackend.restore([part(7, 3), part(0, 0), part(1, 2)])
    assert list_state(restored).get() == [7, 8, 9, 1, 2]
    assert restored.registered_state_names() == {"s"}


def test_the_same_state_is_the_same_object() -> None:
    backend = OperatorStateBackend()
    assert list_state(backend) is list_state(backend)
    assert list_state(backend) is not list_state(backend, "other")
    assert backend.registered_state_names() == {"s", "other"}


def test_a_registered_but_empty_state_is_kept() -> None:
    backend = backend_with(empty=(pa.int64(), []), full=(pa.int64(), [1]))
    handle = snapshot_of(backend)
    assert handle.states["empty"].count == 0
    assert OperatorStateBackend.restore([handle]).registered_state_names() == {"empty", "full"}
    alone = snapshot_of(backend_with(empty=(pa.int64(), [])))
    restored = OperatorStateBackend.restore([alone])
    assert restored.registered_state_names() == {"empty"}
    with pytest.raises(StateMigrationError):
        list_state(restored, "empty", pa.string())


def test_a_state_that_nobody_asks_for_is_carried_on() -> None:
    handle = snapshot_of(backend_with(a=(pa.int64(), [1]), b=(pa.string(), ["x"])))
    for _ in range(3):
        backend = OperatorStateBackend.restore([handle])
        list_state(backend, "a").add(2)
        handle = snapshot_of(backend)
    backend = OperatorStateBackend.restore([handle])
    assert list_state(backend, "b", pa.string()).get() == ["x"]
    assert list_state(backend, "a").get() == [1, 2, 2, 2]


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize(
    "other", [pa.string(), pa.int32(), pa.struct([("a", pa.int64())])], ids=str
)
def test_another_type_is_refused_with_both_types_and_the_name(
    other: Any,
    stored: bool,  # noqa: FBT001
) -> None:
    backend = backend_with(numbers=(pa.int64(), [1]))
    if stored:
        backend = OperatorStateBackend.restore([snapshot_of(backend)])
    with pytest.raises(StateMigrationError, match="'numbers'") as caught:
        list_state(backend, "numbers", other)
    assert "int64" in str(caught.value)
    assert str(other) in str(caught.value)
    assert list_state(backend, "numbers").get() == [1]


def test_handles_with_different_types_of_one_state_are_refused() -> None:
    handles = [
        snapshot_of(backend_with(s=(element_type, [])))
        for element_type in (pa.int64(), pa.string())
    ]
    with pytest.raises(StateMigrationError, match="'s'"):
        OperatorStateBackend.restore(handles)


def test_a_state_does_not_grow_over_a_hundred_checkpoints() -> None:
    kinds = VALUES["categories"][0]
    backend = backend_with(s=(pa.int64(), range(100)), k=(kinds, ["a", "b"]))
    sizes = set()
    for _ in range(100):
        handle = snapshot_of(backend)
        sizes.add(handle.size)
        backend = OperatorStateBackend.restore([handle])
    assert len(sizes) == 1


def test_a_state_that_grows_with_every_checkpoint_is_restored_as_one_chunk() -> None:
    kinds = VALUES["categories"][0]
    backend = backend_with(s=(pa.int64(), []), k=(kinds, []))
    for n in range(100):
        list_state(backend).add_all([n])
        list_state(backend, "k", kinds).add(str(n))
        backend = OperatorStateBackend.restore([snapshot_of(backend)])
        assert len(list_state(backend).chunks()) == 1
        assert len(list_state(backend, "k", kinds).chunks()) == 1
    assert list_state(backend).get() == list(range(100))


def test_a_missing_file_is_not_found(local_directory: str) -> None:
    handle = snapshot_of(
        backend_with(s=(pa.int64(), range(10_000))), lambda: on_disk(local_directory)
    )
    handle.discard_state()
    with pytest.raises(CheckpointNotFoundError):
        OperatorStateBackend.restore([handle])


class TestCorruption:
    @pytest.fixture
    def handle(self) -> OperatorStateHandle:
        return snapshot_of(backend_with(s=(pa.string(), ["abc", "", "def"])))

    def restore(self, handle: OperatorStateHandle, data: bytes) -> None:
        OperatorStateBackend.restore(
            [OperatorStateHandle(handle.states, ByteStreamStateHandle(data))]
        )

    def data(self, handle: OperatorStateHandle) -> bytes:
        assert isinstance(handle.stream, ByteStreamStateHandle)
        return handle.stream.data

    def test_a_stream_cut_at_any_byte_is_corrupt(self, handle: OperatorStateHandle) -> None:
        data = self.data(handle)
        for length in range(len(data)):
            with pytest.raises(CheckpointCorruptedError, match="'s'"):
                self.restore(handle, data[:length])

    def test_other_bytes_are_corrupt(self, handle: OperatorStateHandle) -> None:
        data = self.data(handle)
        for other in (bytes(len(data)), b"\xff" * len(data), data[::-1], data[8:] + data[:8]):
            with pytest.raises(CheckpointCorruptedError, match="'s'"):
                self.restore(handle, other)

    def test_a_byte_changed_in_the_footer_is_corrupt_or_harmless(
        self, handle: OperatorStateHandle
    ) -> None:
        # The bytes of the elements have the file's checksum, or that of `_metadata`.
        data = self.data(handle)
        (footer,) = struct.unpack_from("<i", data, len(data) - 10)
        outcomes = set()
        for at in range(len(data) - 10 - footer, len(data)):
            damaged = bytearray(data)
            damaged[at] ^= 0xFF
            try:
                self.restore(handle, bytes(damaged))
            except CheckpointCorruptedError:
                outcomes.add("corrupt")
            else:
                outcomes.add("harmless")
        assert "corrupt" in outcomes

    @pytest.mark.parametrize("place", ["memory", "file"])
    @pytest.mark.parametrize(
        "change",
        [{"count": 4}, {"first": 1}, {"length": 10}, {"length": 10**6}, {"offset": 10**6}],
        ids=str,
    )
    def test_a_handle_that_does_not_fit_its_stream_is_corrupt(
        self, change: dict[str, int], place: str, local_directory: str
    ) -> None:
        backend = backend_with(s=(pa.string(), ["abc", "", "x" * 50_000]))
        if place == "memory":
            handle = snapshot_of(backend)
        else:
            handle = snapshot_of(backend, lambda: on_disk(local_directory))
        wrong = msgspec.structs.replace(handle.states["s"], **change)
        with pytest.raises(CheckpointCorruptedError):
            OperatorStateBackend.restore([OperatorStateHandle({"s": wrong}, handle.stream)])

    def test_a_damaged_file_is_corrupt(self, local_directory: str) -> None:
        handle = snapshot_of(
            backend_with(s=(pa.int64(), range(10_000))), lambda: on_disk(local_directory)
        )
        assert isinstance(handle.stream, FileStateHandle)
        path = handle.stream.uri.removeprefix("file://")
        with open(path, "r+b") as file:
            file.seek(40_000)
            file.write(b"damage")
        with pytest.raises(CheckpointCorruptedError) as caught:
            OperatorStateBackend.restore([handle])
        assert caught.value.location == handle.stream.uri


def test_modes_are_numbers_that_never_change() -> None:
    assert [(mode.name, mode.value) for mode in OperatorStateMode] == [
        ("SPLIT_DISTRIBUTE", 0),
        ("UNION", 1),
        ("BROADCAST", 2),
    ]


def test_a_list_state_is_split_when_it_is_restored_elsewhere() -> None:
    handle = snapshot_of(backend_with(s=(pa.int64(), [1, 2])))
    length = handle.states["s"].length
    assert handle.states == {
        "s": StatePartitions(OperatorStateMode.SPLIT_DISTRIBUTE, 0, length, 0, 2)
    }
    assert handle.size == length
