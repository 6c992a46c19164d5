"""Element types that are not Arrow's own: through real bytes and back."""

import copy
import pickle
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from contracts.elements import (
    PYTHON_VALUES,
    SAMPLE,
    Circle,
    Event,
    Node,
    Order,
    Pair,
    Plain,
    Point,
    broadcast_state,
    list_state,
    restore_from,
    snapshot_of,
    union_state,
)

from holdfast.backends import ListStateDescriptor, MapStateDescriptor, OperatorStateBackend, Pickled
from holdfast.backends.serializers import serializer_of, stored_serializer
from holdfast.backends.snapshot import Compression
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError, StateMigrationError

PYTHON = pytest.mark.parametrize(
    ("element_type", "values"), PYTHON_VALUES.values(), ids=PYTHON_VALUES
)


class TestRoundTrip:
    @PYTHON
    @pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
    def test_restored_state_has_the_same_elements(
        self, element_type: Any, values: list[Any], compression: Compression | None
    ) -> None:
        backend = OperatorStateBackend()
        state = list_state(backend, "s", element_type)
        for value in values:
            state.add(value)
        state.add_all(iter(values))
        handle = snapshot_of(backend, compression=compression)
        again = list_state(OperatorStateBackend.restore([handle]), "s", element_type)
        assert state.get() == list(again) == values * 2
        assert [type(value) for value in again] == [type(value) for value in values * 2]
        assert len(state) == len(again) == 2 * len(values)

    @SAMPLE
    def test_elements_are_values_of_a_map_too(self, element_type: Any, values: list[Any]) -> None:
        backend = OperatorStateBackend()
        entries = dict(enumerate(values))
        state = broadcast_state(backend, "b", (int, element_type), entries)
        again = broadcast_state(restore_from(backend), "b", (int, element_type))
        assert dict(state.entries()) == dict(again.entries()) == entries

    @PYTHON
    def test_hashable_elements_are_keys_of_a_map(
        self, element_type: Any, values: list[Any]
    ) -> None:
        entries = {key: str(key) for key in values if _is_hashable(key)}
        backend = OperatorStateBackend()
        broadcast_state(backend, "b", (element_type, str), entries)
        again = broadcast_state(restore_from(backend), "b", (element_type, str))
        assert dict(again.entries()) == entries

    @SAMPLE
    def test_part_of_the_elements_is_read(self, element_type: Any, values: list[Any]) -> None:
        backend = OperatorStateBackend()
        list_state(backend, "s", element_type).add_all(values)
        handle = snapshot_of(backend)
        for first in range(len(values)):
            for end in range(first, len(values) + 1):
                cut = msgspec.structs.replace(handle.states["s"], first=first, count=end - first)
                part = OperatorStateBackend.restore(
                    [msgspec.structs.replace(handle, states={"s": cut})]
                )
                again = restore_from(part)  # also without a request
                for backend in (part, again):
                    assert list_state(backend, "s", element_type).get() == values[first:end]

    @SAMPLE
    def test_empty_elements_are_restored_as_empty(
        self, element_type: Any, values: list[Any]
    ) -> None:
        backend = OperatorStateBackend()
        state = list_state(backend, "s", element_type)
        assert (state.get(), len(state)) == ([], 0)
        again = list_state(restore_from(backend), "s", element_type)
        assert (again.get(), len(again)) == ([], 0)
        again.add_all([])
        again.update([])
        assert again.get() == []

    @PYTHON
    def test_column_has_several_chunks(self, element_type: Any, values: list[Any]) -> None:
        backend = OperatorStateBackend()
        state = list_state(backend, "s", element_type)
        for value in values:
            state.add_all([value])
        assert len(state.chunks()) == len(values)
        assert state.get() == values
        assert list_state(restore_from(backend, backend), "s", element_type).get() == values * 2

    @SAMPLE
    def test_slices_of_a_column_are_decoded(self, element_type: Any, values: list[Any]) -> None:
        serializer = serializer_of(element_type)
        (array,) = serializer.encode(values * 2)
        for first in range(len(array)):
            chunks = [array[first:], array[:0], array[:first]]
            column = pa.chunked_array(chunks, serializer.storage_type)
            again = (values * 2)[first:] + (values * 2)[:first]
            assert serializer.decode(column) == again

    def test_hundred_thousand_structs_come_back(self) -> None:
        values = [Point(n) for n in range(100_000)]
        backend = OperatorStateBackend()
        list_state(backend, "s", Point).add_all(values)
        assert list_state(restore_from(backend), "s", Point).get() == values


class TestValueSemantics:
    @pytest.mark.parametrize("mode", [list_state, union_state])
    @PYTHON
    def test_changed_objects_leave_the_state_unchanged(
        self, element_type: Any, values: list[Any], mode: Any
    ) -> None:
        state = mode(OperatorStateBackend(), "s", element_type)
        mine = copy.deepcopy(values)
        state.add_all(mine)
        state.get().clear()
        for value in [*mine, *state.get()]:
            _change(value)
        assert state.get() == values

    def test_objects_of_an_arrow_state_may_be_changed(self) -> None:
        state = list_state(OperatorStateBackend(), "s", pa.struct({"a": pa.list_(pa.int64())}))
        state.add({"a": [1]})
        (value,) = state.get()
        value["a"].append(2)
        value["b"] = 1
        assert state.get() == [{"a": [1]}]


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _change(value: Any) -> None:
    if isinstance(value, dict | set | list):
        value.clear()
    elif isinstance(value, Event):
        value.tags.append("changed")
        value.note = "changed"
    elif isinstance(value, Node):
        value.value = -1
    elif isinstance(value, Order):
        value.lines.append("changed")
    elif isinstance(value, Circle):
        value.radius = -1.0
    elif isinstance(value, Plain):
        value.content = "changed"


@dataclass
class AnyField:
    content: Plain


class TestTypes:
    @pytest.mark.parametrize(
        "element_type",
        [None, 5, "int", Plain, AnyField, complex, Pickled, object(), list[Plain]],
    )
    def test_unsupported_element_types_are_refused(self, element_type: Any) -> None:
        with pytest.raises(InvalidRequestError, match="'s'"):
            ListStateDescriptor("s", element_type)
        with pytest.raises(InvalidRequestError, match="'s'"):
            MapStateDescriptor("s", int, element_type)

    @pytest.mark.parametrize("element_type", [Point, Pickled(), int], ids=str)
    def test_defaults_are_for_structs_of_arrow(self, element_type: Any) -> None:
        with pytest.raises(InvalidRequestError, match="default"):
            ListStateDescriptor("s", element_type, defaults={"x": 1})

    @pytest.mark.parametrize("defaults", [{"b": 1}, {"a": "x"}, {"a": None}], ids=str)
    def test_default_has_to_fit_its_field(self, defaults: dict[str, Any]) -> None:
        with pytest.raises(InvalidRequestError):
            ListStateDescriptor("s", pa.struct({"a": pa.int64()}), defaults=defaults)

    @SAMPLE
    def test_descriptors_pickle_and_compare(self, element_type: Any, values: list[Any]) -> None:
        for descriptor in (
            ListStateDescriptor("s", element_type),
            MapStateDescriptor("s", element_type, element_type),
        ):
            again = pickle.loads(pickle.dumps(descriptor))
            assert again == descriptor
            assert hash(again) == hash(descriptor)
            assert repr(again) == repr(descriptor)
        assert descriptor != ListStateDescriptor("s", element_type)
        assert ListStateDescriptor("s", element_type) != ListStateDescriptor("t", element_type)
        state = list_state(OperatorStateBackend(), "s", element_type)
        state.add_all(values)
        assert ListStateDescriptor("s", element_type).serializer == state.serializer

    def test_native_types_are_arrows(self) -> None:
        for native, arrow in (
            (str, pa.string()),
            (bytes, pa.binary()),
            (int, pa.int64()),
            (float, pa.float64()),
            (bool, pa.bool_()),
        ):
            assert ListStateDescriptor("s", native) == ListStateDescriptor("s", arrow)

    def test_another_class_with_the_same_name_of_state_is_refused(self) -> None:
        backend = OperatorStateBackend()
        list_state(backend, "s", Point).add(Point(1))
        with pytest.raises(StateMigrationError, match=r"Point.*Pair"):
            list_state(backend, "s", Pair)
        assert list_state(backend, "s", Point).get() == [Point(1)]


class TestManyBytes:
    def test_single_elements_of_a_few_megabytes_are_one_chunk(self) -> None:
        text = "größe" * 200_000
        backend = OperatorStateBackend()
        state = list_state(backend, "s", str)
        for _ in range(8):
            state.add(text)
        assert len(state.chunks()) == 1
        assert list_state(restore_from(backend), "s", str).get() == [text] * 8

    def test_chunks_and_single_elements_keep_their_order(self) -> None:
        state = list_state(OperatorStateBackend(), "s", Point)
        state.add(Point(1))
        state.add_all([Point(2), Point(3)])
        state.add(Point(4))
        assert [len(chunk) for chunk in state.chunks()] == [1, 2, 1]
        assert [point.x for point in state] == [1, 2, 3, 4]


class TestStored:
    @SAMPLE
    def test_same_type_reads_it_as_it_is(self, element_type: Any, values: list[Any]) -> None:
        serializer = serializer_of(element_type)
        again = serializer_of(element_type)
        assert again.migration(serializer.stored, serializer.storage_type) is None

    @pytest.mark.parametrize("stored", [int, Point, Pickled()], ids=str)
    @pytest.mark.parametrize("wanted", [int, Point, Pickled()], ids=str)
    def test_another_kind_of_serializer_is_incompatible(self, stored: Any, wanted: Any) -> None:
        if stored == wanted:
            return
        backend = OperatorStateBackend()
        list_state(backend, "s", stored)
        with pytest.raises(StateMigrationError, match="'s'"):
            list_state(restore_from(backend), "s", wanted)

    def test_column_without_its_serializer_is_corrupt(self) -> None:
        for content in (b"", b"\xc1", msgspec.msgpack.encode({"kind": "other", "name": "x"})):
            stored = pa.field(
                "element", pa.large_binary(), metadata={b"holdfast.serializer": content}
            )
            with pytest.raises(CheckpointCorruptedError, match="'s'"):
                stored_serializer(stored, "s")

    def test_invalid_element_bytes_are_corrupt(self) -> None:
        column = pa.chunked_array([[b"\xc1"]], pa.large_binary())
        for element_type in (Point, Pickled()):
            with pytest.raises(CheckpointCorruptedError):
                serializer_of(element_type).decode(column)
