"""Arrays that were read refer only to their own memory, whatever their text."""

import struct

import pyarrow as pa
import pytest

from holdfast.backends.arrow import check_memory

NO_TEXT = b"\xff\xfe"


def texts(*ends: int) -> pa.Array:
    """Texts that end there, in two bytes of invalid UTF-8."""
    offsets = struct.pack(f"<{len(ends) + 1}i", 0, *ends)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(NO_TEXT)]
    return pa.Array.from_buffers(pa.string(), len(ends), buffers)


def nest_array(array: pa.Array) -> dict[str, pa.Array]:
    """Return the array by itself and inside of other arrays."""
    ends = pa.array([0, len(array)], pa.int32())
    numbers = pa.array(range(len(array)), pa.int32())
    return {
        "flat": array,
        "in a struct": pa.StructArray.from_arrays([array, array], ["a", "a"]),
        "in a required field": pa.StructArray.from_arrays(
            [array], fields=[pa.field("a", array.type, nullable=False)]
        ),
        "in a list": pa.ListArray.from_arrays(ends, array),
        "in a map": pa.MapArray.from_arrays(ends, numbers, array),
        "in a dictionary": pa.DictionaryArray.from_arrays(numbers, array),
    }


@pytest.mark.parametrize("place", nest_array(texts(2)))
def test_text_may_be_of_any_bytes_but_must_end_in_its_own_memory(place: str) -> None:
    check_memory(nest_array(texts(1, 2))[place])
    with pytest.raises(pa.ArrowInvalid, match="out of bounds"):
        check_memory(nest_array(texts(200, 2))[place])


def test_missing_values_may_have_invalid_indices_and_nulls() -> None:
    kinds = pa.dictionary(pa.int32(), pa.string())
    inner = pa.struct([pa.field("kind", kinds), pa.field("name", pa.string(), nullable=False)])
    check_memory(pa.array([{"inner": None}], pa.struct([("inner", inner)])))


def test_index_leads_into_its_dictionary() -> None:
    indices = pa.array([0, 7], pa.int32())
    wrong = pa.DictionaryArray.from_arrays(indices, pa.array(["a"]), safe=False)
    with pytest.raises(pa.ArrowInvalid, match="out of bounds"):
        check_memory(wrong)


def test_nulls_without_a_type_may_be_in_a_part_of_a_list() -> None:
    lists = pa.array([[{"x": None}], [{"x": None}]], pa.list_(pa.struct([("x", pa.null())])))
    check_memory(lists[:1])
    check_memory(lists[1:])
