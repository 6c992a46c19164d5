import struct
from collections.abc import Callable
from itertools import chain
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from contracts.elements import (
    VALUES,
    Plain,
    Point,
    backend_with,
    broadcast_state,
    list_state,
    memory_factory,
    restore_from,
    snapshot_of,
    union_state,
)

from holdfast.backends import ListStateDescriptor, MapStateDescriptor, OperatorStateBackend, Pickled
from holdfast.backends.assignment import redistribute
from holdfast.backends.snapshot import Compression
from holdfast.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    InvalidRequestError,
    StateMigrationError,
)
from holdfast.locations import checkpoint_storage
from holdfast.locations.adapters import (
    ByteStreamStateHandle,
    CheckpointStreamFactory,
    FileStateHandle,
)
from holdfast.locations.handles import OperatorStateHandle, OperatorStateMode, StatePartitions


def on_disk(directory: str) -> CheckpointStreamFactory:
    access = checkpoint_storage(directory).create_checkpoint_storage("job")
    return access.initialize_location_for_checkpoint(1)


@pytest.mark.parametrize(("element_type", "values"), VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("place", ["memory", "file"])
def test_restored_state_equals_the_stored_one(
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


def test_million_longs_go_to_a_file_and_back(local_directory: str) -> None:
    values = pa.array(range(1_000_000))
    backend = backend_with(s=(pa.int64(), values))
    handle = snapshot_of(backend, lambda: on_disk(local_directory))
    assert isinstance(handle.stream, FileStateHandle)
    assert 8_000_000 < handle.size < 8_100_000
    assert "0" * 100 not in repr(handle)
    state = list_state(OperatorStateBackend.restore([handle]))
    assert state.to_arrow().equals(pa.chunked_array([values]))


def test_state_of_several_handles_is_appended_in_order() -> None:
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


def test_only_assigned_elements_are_restored() -> None:
    handle = snapshot_of(backend_with(s=(pa.int64(), range(10)), t=(pa.string(), ["x"])))

    def part(first: int, count: int) -> OperatorStateHandle:
        cut = msgspec.structs.replace(handle.states["s"], first=first, count=count)
        return OperatorStateHandle({"s": cut}, handle.stream)

    restored = OperatorStateBackend.restore([part(7, 3), part(0, 0), part(1, 2)])
    assert list_state(restored).get() == [7, 8, 9, 1, 2]
    assert restored.registered_state_names() == {"s"}


def test_same_state_is_the_same_object() -> None:
    backend = OperatorStateBackend()
    assert list_state(backend) is list_state(backend)
    assert list_state(backend) is not list_state(backend, "other")
    assert backend.registered_state_names() == {"s", "other"}


def test_registered_but_empty_state_is_kept() -> None:
    backend = backend_with(empty=(pa.int64(), []), full=(pa.int64(), [1]))
    handle = snapshot_of(backend)
    assert handle.states["empty"].count == 0
    assert OperatorStateBackend.restore([handle]).registered_state_names() == {"empty", "full"}
    only = snapshot_of(backend_with(empty=(pa.int64(), [])))
    restored = OperatorStateBackend.restore([only])
    assert restored.registered_state_names() == {"empty"}
    with pytest.raises(StateMigrationError):
        list_state(restored, "empty", pa.string())


def test_state_not_requested_is_carried_over() -> None:
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


def test_handles_with_different_types_of_one_map_are_refused() -> None:
    backends = [OperatorStateBackend(), OperatorStateBackend()]
    for backend, value_type in zip(backends, (int, str), strict=True):
        broadcast_state(backend, "b", (int, value_type))
    with pytest.raises(StateMigrationError, match=r"'b'.* to int64 .* to string"):
        restore_from(*backends)


def test_lists_of_incompatible_types_are_refused_on_request() -> None:
    backends = [backend_with(s=(int, [1])), backend_with(s=(str, ["a"]))]
    backend = restore_from(*backends)
    for wanted in (int, str):
        with pytest.raises(StateMigrationError, match="'s'"):
            list_state(backend, "s", wanted)


def test_state_does_not_grow_over_a_hundred_checkpoints() -> None:
    kinds = VALUES["categories"][0]
    backend = backend_with(s=(pa.int64(), range(100)), k=(kinds, ["a", "b"]))
    sizes = set()
    for _ in range(100):
        handle = snapshot_of(backend)
        sizes.add(handle.size)
        backend = OperatorStateBackend.restore([handle])
    assert len(sizes) == 1


def test_state_grown_by_every_checkpoint_is_restored_as_one_chunk() -> None:
    kinds = VALUES["categories"][0]
    backend = backend_with(s=(pa.int64(), []), k=(kinds, []))
    for n in range(100):
        list_state(backend).add_all([n])
        list_state(backend, "k", kinds).add(str(n))
        backend = OperatorStateBackend.restore([snapshot_of(backend)])
        assert len(list_state(backend).chunks()) == 1
        assert len(list_state(backend, "k", kinds).chunks()) == 1
    assert list_state(backend).get() == list(range(100))


def test_missing_file_is_not_found(local_directory: str) -> None:
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

    def test_stream_cut_at_any_byte_is_corrupt(self, handle: OperatorStateHandle) -> None:
        data = self.data(handle)
        for length in range(len(data)):
            with pytest.raises(CheckpointCorruptedError, match="'s'"):
                self.restore(handle, data[:length])

    def test_other_bytes_are_corrupt(self, handle: OperatorStateHandle) -> None:
        data = self.data(handle)
        for other in (bytes(len(data)), b"\xff" * len(data), data[::-1], data[8:] + data[:8]):
            with pytest.raises(CheckpointCorruptedError, match="'s'"):
                self.restore(handle, other)

    def test_byte_changed_in_the_footer_is_corrupt_or_harmless(
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
    def test_handle_unlike_its_stream_is_corrupt(
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

    def test_damaged_file_is_corrupt(self, local_directory: str) -> None:
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


def test_mode_numbers_are_stable() -> None:
    assert [(mode.name, mode.value) for mode in OperatorStateMode] == [
        ("SPLIT_DISTRIBUTE", 0),
        ("UNION", 1),
        ("BROADCAST", 2),
    ]


def test_list_state_is_split_when_it_is_restored_elsewhere() -> None:
    handle = snapshot_of(backend_with(s=(pa.int64(), [1, 2])))
    length = handle.states["s"].length
    assert handle.states == {
        "s": StatePartitions(OperatorStateMode.SPLIT_DISTRIBUTE, 0, length, 0, 2)
    }
    assert handle.size == length


class TestUpstream:
    """Flink's OperatorStateBackendTest."""

    def test_fresh_backend_has_no_names(self) -> None:
        backend = OperatorStateBackend()
        assert backend.registered_state_names() == frozenset()
        assert backend.registered_broadcast_state_names() == frozenset()

    @pytest.mark.parametrize("element_type", [Point, Pickled(Plain), str])
    def test_class_is_a_type(self, element_type: Any) -> None:
        value = {Point: Point(1), str: "a"}.get(element_type, Plain(1))
        state = list_state(OperatorStateBackend(), "s", element_type)
        state.add(value)
        assert state.get() == [value]

    def test_states_are_registered_under_their_names(self) -> None:
        backend = OperatorStateBackend()
        assert list_state(backend, "test1").get() == []
        list_state(backend, "test1").add_all([42, 4711])
        assert backend.registered_state_names() == {"test1"}
        list_state(backend, "test2").add_all([7, 13, 23])
        union_state(backend, "test3").add_all([17, 18])
        assert backend.registered_state_names() == {"test1", "test2", "test3"}
        assert backend.registered_broadcast_state_names() == frozenset()
        for get, name, values in (
            (list_state, "test1", [42, 4711]),
            (list_state, "test2", [7, 13, 23]),
            (union_state, "test3", [17, 18]),
        ):
            assert get(backend, name).get() == values
            assert get(backend, name) is get(backend, name)
        list_state(backend, "test1").update([])
        list_state(backend, "test2").update([5])
        assert (list_state(backend, "test1").get(), list_state(backend, "test2").get()) == ([], [5])
        broadcast = broadcast_state(backend, "test4")
        assert broadcast is broadcast_state(backend, "test4")
        assert backend.registered_broadcast_state_names() == {"test4"}
        with pytest.raises(InvalidRequestError):
            union_state(backend, "test2")
        with pytest.raises(InvalidRequestError):
            list_state(backend, "test3")

    def test_broadcast_state_is_stored_without_list_state(self) -> None:
        backend = OperatorStateBackend()
        broadcast_state(backend, entries={1: 2, 3: 4, 5: 6})
        backend = restore_from(backend)
        state = broadcast_state(backend)
        assert dict(state.entries()) == {1: 2, 3: 4, 5: 6}
        state.remove(1)
        backend = restore_from(backend)
        assert dict(broadcast_state(backend).entries()) == {3: 4, 5: 6}
        broadcast_state(backend).clear()
        backend = restore_from(backend)
        assert backend.registered_broadcast_state_names() == {"b"}
        assert dict(broadcast_state(backend).entries()) == {}

    @pytest.mark.parametrize("later", [False, True])
    def test_three_list_and_three_broadcast_states_come_back(
        self,
        later: bool,  # noqa: FBT001
    ) -> None:
        backend = OperatorStateBackend()
        list_state(backend, "l1", Point).add_all([Point(42), Point(4711)])
        list_state(backend, "l2", Pickled(Plain)).add_all([Plain(7), Plain(13)])
        union_state(backend, "u", Point).add_all([Point(17), Point(18), Point(19)])
        broadcast_state(backend, "b1", (Point, Point), {Point(1): Point(2), Point(2): Point(5)})
        broadcast_state(backend, "b2", (int, Pickled(Plain)), {2: Plain(5)})
        broadcast_state(backend, "b3", (str, pa.struct({"a": pa.int8()})), {"k": {"a": 1}})
        pending = backend.snapshot(memory_factory())
        if later:
            list_state(backend, "l1", Point).add(Point(77))
            list_state(backend, "l2", Pickled(Plain)).update([Plain(1)])
            union_state(backend, "u", Point).clear()
            broadcast_state(backend, "b1", (Point, Point), {Point(32): Point(97)})
            broadcast_state(backend, "b2", (int, Pickled(Plain))).remove(2)
            broadcast_state(backend, "b3", (str, pa.struct({"a": pa.int8()}))).clear()
            list_state(backend, "new").add(1)
        (handle,) = pending.run().state.managed_operator
        backend.dispose()
        backend = OperatorStateBackend.restore([handle])
        assert backend.registered_state_names() == {"l1", "l2", "u"}
        assert backend.registered_broadcast_state_names() == {"b1", "b2", "b3"}
        assert list_state(backend, "l1", Point).get() == [Point(42), Point(4711)]
        assert list_state(backend, "l2", Pickled(Plain)).get() == [Plain(7), Plain(13)]
        assert union_state(backend, "u", Point).get() == [Point(17), Point(18), Point(19)]
        b1 = broadcast_state(backend, "b1", (Point, Point))
        assert dict(b1.entries()) == {Point(1): Point(2), Point(2): Point(5)}
        assert broadcast_state(backend, "b2", (int, Pickled(Plain))).get(2) == Plain(5)
        b3 = broadcast_state(backend, "b3", (str, pa.struct({"a": pa.int8()})))
        assert dict(b3.entries()) == {"k": {"a": 1}}


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
class TestRestoreOperation:
    """Flink's OperatorStateRestoreOperationTest."""

    def test_lists_and_maps_are_restored_together(self, compression: Compression) -> None:
        backend = backend_with(s1=(pa.int64(), range(1000)), s2=(Point, [Point(4)]))
        broadcast_state(backend, "b", (int, int), {n: n * n for n in range(1000)})
        handle = snapshot_of(backend, compression=compression)
        backend = OperatorStateBackend.restore([handle])
        assert list_state(backend, "s1").get() == list(range(1000))
        assert list_state(backend, "s2", Point).get() == [Point(4)]
        assert dict(broadcast_state(backend).entries()) == {n: n * n for n in range(1000)}

    def test_two_handles_are_one_state(self, compression: Compression) -> None:
        backends = [
            backend_with(s1=(pa.int64(), [1, 2]), s2=(pa.int64(), [3])),
            backend_with(s2=(pa.int64(), [4, 5]), s1=(pa.int64(), [6])),
        ]
        for entries, part in zip(({1: 1, 2: 2}, {2: 3, 4: 4}), backends, strict=True):
            broadcast_state(part, entries=entries)
            union_state(part).add_all(list(entries))
        handles = [snapshot_of(part, compression=compression) for part in backends]
        backend = OperatorStateBackend.restore(handles)
        for _ in range(2):
            assert list_state(backend, "s1").get() == [1, 2, 6]
            assert list_state(backend, "s2").get() == [3, 4, 5]
            assert union_state(backend).get() == [1, 2, 2, 4]
            assert dict(broadcast_state(backend).entries()) == {1: 1, 2: 3, 4: 4}
            # These were not read, and are merged anyway.
            backend = restore_from(OperatorStateBackend.restore(handles))

    def test_empty_states_are_restored_next_to_others(self, compression: Compression) -> None:
        backend = backend_with(empty=(Point, []), full=(pa.int64(), [1]))
        union_state(backend, "empty union")
        broadcast_state(backend, "empty map")
        broadcast_state(backend, "map", entries={1: 2})
        for _ in range(2):
            handle = snapshot_of(backend, compression=compression)
            backend = OperatorStateBackend.restore([handle])
            assert backend.registered_state_names() == {"empty", "full", "empty union"}
            assert backend.registered_broadcast_state_names() == {"empty map", "map"}
        assert list_state(backend, "empty", Point).get() == []
        assert list_state(backend, "full").get() == [1]
        assert union_state(backend, "empty union").get() == []
        assert dict(broadcast_state(backend, "empty map").entries()) == {}
        assert dict(broadcast_state(backend, "map").entries()) == {1: 2}

    @pytest.mark.parametrize("parallelism", [1, 2, 5, 10, 15])
    def test_ten_elements_are_spread(self, compression: Compression, parallelism: int) -> None:
        backend = backend_with(
            s1=(pa.int64(), range(10)), s2=(Point, [Point(n) for n in range(10)])
        )
        handle = snapshot_of(backend, compression=compression)
        parts = redistribute([[handle]], parallelism)
        backends = [OperatorStateBackend.restore(part) for part in parts]
        s1 = [list_state(part, "s1").get() for part in backends]
        s2 = [list_state(part, "s2", Point).get() for part in backends]
        assert sorted(chain.from_iterable(s1)) == list(range(10))
        assert sorted(point.x for point in chain.from_iterable(s2)) == list(range(10))
        sizes = [len(elements) + len(other) for elements, other in zip(s1, s2, strict=True)]
        assert max(sizes) - min(sizes) <= 1


KINDS: dict[str, Callable[..., Any]] = {
    "list": list_state,
    "union": union_state,
    "broadcast": broadcast_state,
}


class TestKinds:
    @pytest.mark.parametrize("first", KINDS)
    @pytest.mark.parametrize("second", KINDS)
    @pytest.mark.parametrize("stored", [False, True])
    @pytest.mark.parametrize("empty", [False, True])
    def test_name_belongs_to_one_state(
        self,
        first: str,
        second: str,
        stored: bool,  # noqa: FBT001
        empty: bool,  # noqa: FBT001
    ) -> None:
        backend = OperatorStateBackend()
        state = KINDS[first](backend, "s")
        if not empty:
            state.put(1, 2) if first == "broadcast" else state.add(1)
        if stored:
            backend = restore_from(backend)
        if first == second:
            assert len(KINDS[second](backend, "s")) == (not empty)
            return
        for _ in range(2):
            with pytest.raises(InvalidRequestError, match=r"'s' is a .* requested as a "):
                KINDS[second](backend, "s")
        assert len(KINDS[first](backend, "s")) == (not empty)
        assert KINDS[first](restore_from(backend), "s").name == "s"

    @pytest.mark.parametrize("first", KINDS)
    @pytest.mark.parametrize("second", KINDS)
    def test_handles_with_different_kinds_of_one_state_are_refused(
        self, first: str, second: str
    ) -> None:
        backends = [OperatorStateBackend(), OperatorStateBackend()]
        for kind, backend in zip((first, second), backends, strict=True):
            KINDS[kind](backend, "s")
        if first == second:
            restore_from(*backends)
        else:
            with pytest.raises(StateMigrationError, match="'s'"):
                restore_from(*backends)

    @pytest.mark.parametrize("first", KINDS)
    def test_handle_of_another_kind_than_its_stream_is_corrupt(self, first: str) -> None:
        backend = OperatorStateBackend()
        KINDS[first](backend, "s")
        handle = snapshot_of(backend)
        modes = {OperatorStateMode.BROADCAST}
        if first == "broadcast":
            modes = {OperatorStateMode.SPLIT_DISTRIBUTE, OperatorStateMode.UNION}
        for mode in modes:
            wrong = msgspec.structs.replace(handle.states["s"], mode=mode)
            with pytest.raises(CheckpointCorruptedError, match="'s'"):
                OperatorStateBackend.restore([OperatorStateHandle({"s": wrong}, handle.stream)])

    @pytest.mark.parametrize("name", [None, 1, b"s"])
    def test_name_is_text(self, name: Any) -> None:
        with pytest.raises(InvalidRequestError):
            ListStateDescriptor(name, int)
        with pytest.raises(InvalidRequestError):
            MapStateDescriptor(name, int, int)

    def test_empty_name_is_a_name(self) -> None:
        backend = backend_with(**{"": (int, [1])})
        assert list_state(restore_from(backend), "").get() == [1]


class TestUntouched:
    def test_types_of_removed_classes_are_carried_over(self) -> None:
        gone = msgspec.defstruct("Gone", [("a", int)])
        backend = backend_with(s=(gone, [gone(1)]), other=(int, []))
        union_state(backend, "u", gone).add(gone(2))
        broadcast_state(backend, "b", (str, gone), {"k": gone(3)})
        sizes = set()
        for _ in range(3):
            handle = snapshot_of(backend)
            sizes.add(handle.size)
            backend = OperatorStateBackend.restore([handle])
            list_state(backend, "other", int)
        assert len(sizes) == 1
        again = msgspec.defstruct("Gone", [("a", int)])
        assert list_state(backend, "s", again).get() == [again(1)]
        assert union_state(backend, "u", again).get() == [again(2)]
        assert broadcast_state(backend, "b", (str, again)).get("k") == again(3)

    @pytest.mark.parametrize("parallelism", [1, 3])
    def test_they_are_spread_as_any_other(self, parallelism: int) -> None:
        handles = [snapshot_of(backend_with(s=(Point, [Point(n), Point(-n)]))) for n in (1, 2)]
        for _ in range(2):  # the second time from the carried-over state
            parts = redistribute([[handle] for handle in handles], parallelism)
            backends = [OperatorStateBackend.restore(part) for part in parts]
            handles = [
                snapshot_of(backend) for backend in backends if backend.registered_state_names()
            ]
        xs = [point.x for backend in backends for point in list_state(backend, "s", Point).get()]
        assert xs == [1, -1, 2, -2]


class TestClose:
    def test_closed_backend_refuses_snapshots_and_keeps_states(self) -> None:
        backend = backend_with(s=(int, [1]))
        for _ in range(2):
            backend.close()
            with pytest.raises(InvalidRequestError, match="closed"):
                backend.snapshot(memory_factory())
        assert list_state(backend, "s").get() == [1]

    def test_dispose_forgets_the_states(self) -> None:
        backend = restore_from(backend_with(stored=(int, [1])))
        list_state(backend, "s").add(1)
        broadcast_state(backend, entries={1: 2})
        for _ in range(2):
            backend.dispose()
            assert backend.registered_state_names() == frozenset()
            assert backend.registered_broadcast_state_names() == frozenset()
            with pytest.raises(InvalidRequestError, match="closed"):
                backend.snapshot(memory_factory())
