"""Parts of columns that share memory with the whole are stored without the rest of it."""

from typing import Any

import pyarrow as pa
import pytest
from contracts.elements import list_state, restore_from, snapshot_of

from holdfast.backends import OperatorStateBackend
from holdfast.backends.arrow import trim_rows
from holdfast.backends.assignment import redistribute

COUNT = 1000
TEXTS = [f"{number:06}" + "x" * 500 for number in range(COUNT)]
KINDS = pa.dictionary(pa.int32(), pa.string())


def of_texts(element_type: pa.DataType, texts: list[str]) -> pa.Array:
    """An array of that type with each of the texts somewhere."""

    def value(type: pa.DataType, text: str) -> Any:
        types = pa.types
        if types.is_dictionary(type):
            type = type.value_type
        if types.is_struct(type):
            return {field.name: value(field.type, text) for field in type}
        if types.is_map(type):
            return [(value(type.key_type, text), value(type.item_type, text))]
        if types.is_binary(type) or types.is_binary_view(type):
            return text.encode()
        return [value(type.value_type, text)] if hasattr(type, "value_field") else text

    return pa.array([value(element_type, text) for text in texts], element_type)


SHARING = {
    "text views": pa.string_view(),
    "bytes views": pa.binary_view(),
    "dictionary": KINDS,
    "dictionary of bytes": pa.dictionary(pa.int64(), pa.binary()),
    "list view": pa.list_view(pa.string()),
    "large list view": pa.large_list_view(pa.string()),
    "list": pa.list_(pa.string_view()),
    "large list": pa.large_list(KINDS),
    "list of one": pa.list_(pa.string_view(), 1),
    "struct": pa.struct(
        [("a", pa.string_view()), pa.field("b", KINDS, nullable=False), ("c", pa.string())]
    ),
    "struct in a struct": pa.struct([("a", pa.struct([("b", KINDS)]))]),
    "map": pa.map_(pa.string_view(), KINDS),
    "map of texts": pa.map_(pa.string(), pa.list_(KINDS)),
}
SEPARATE = {
    "texts": pa.string(),
    "lists": pa.list_(pa.string()),
    "structs": pa.struct([("a", pa.string())]),
    "maps": pa.map_(pa.string(), pa.string()),
}


@pytest.mark.parametrize("element_type", SHARING.values(), ids=SHARING)
class TestShared:
    def test_subtasks_store_their_own_part_after_a_rescale(self, element_type: pa.DataType) -> None:
        backend = OperatorStateBackend()
        elements = of_texts(element_type, TEXTS)
        list_state(backend, "s", element_type).add_all(elements)
        whole = snapshot_of(backend)
        backends = [
            OperatorStateBackend.restore(handles_of_part)
            for handles_of_part in redistribute([[whole]], 10)
        ]
        parts = [snapshot_of(backend_of_part) for backend_of_part in backends]
        assert sum(part.size for part in parts) < 1.5 * whole.size
        again = OperatorStateBackend.restore(parts)
        assert list_state(again, "s", element_type).get() == elements.to_pylist()

    def test_removed_rows_are_not_stored(self, element_type: pa.DataType) -> None:
        backend = OperatorStateBackend()
        state = list_state(backend, "s", element_type)
        state.add_all(of_texts(element_type, TEXTS))
        size = snapshot_of(backend).size
        state.update(state.to_arrow().slice(COUNT - 1))
        assert snapshot_of(backend).size < size / 50
        assert list_state(restore_from(backend), "s", element_type).get() == state.get()
        state.update(state.to_arrow().slice(0, 0))
        assert list_state(restore_from(backend), "s", element_type).get() == []

    @pytest.mark.parametrize("first", [0, 3, 400])
    def test_missing_values_stay_missing(self, element_type: pa.DataType, first: int) -> None:
        texts = of_texts(element_type, TEXTS)
        elements = pa.concat_arrays([texts.slice(0, 5), pa.nulls(3, element_type), texts])
        rows = pa.table({"element": elements.slice(first, 7)})
        values = trim_rows(rows)
        values.validate(full=True)
        assert values.schema == rows.schema
        assert values.to_pylist() == rows.to_pylist()

    def test_trimming_leaves_the_array_unchanged(self, element_type: pa.DataType) -> None:
        rows = pa.table({"element": of_texts(element_type, TEXTS)})
        (chunk,) = trim_rows(rows)["element"].chunks
        addresses = [buffer and buffer.address for buffer in chunk.buffers()]
        assert addresses == [
            buffer and buffer.address for buffer in rows["element"].chunk(0).buffers()
        ]


@pytest.mark.parametrize("element_type", SEPARATE.values(), ids=SEPARATE)
def test_other_columns_are_not_looked_at(element_type: pa.DataType) -> None:
    rows = pa.table({"element": of_texts(element_type, TEXTS)}).slice(10, 1)
    assert trim_rows(rows) is rows


def test_untrimmable_arrays_are_stored_whole() -> None:
    element_type = pa.list_view(pa.string_view())
    rows = pa.table({"element": of_texts(element_type, TEXTS)}).slice(10, 3)
    assert trim_rows(rows).to_pylist() == rows.to_pylist()


def test_order_of_a_dictionary_is_kept() -> None:
    indices = pa.array([2, 0], pa.int8())
    ordered = pa.DictionaryArray.from_arrays(indices, ["low", "middle", "high"], ordered=True)
    (chunk,) = trim_rows(pa.table({"element": ordered}))["element"].chunks
    assert chunk.dictionary.to_pylist() == ["low", "middle", "high"]
