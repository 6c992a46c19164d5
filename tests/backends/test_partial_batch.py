"""Rows of a section with columns that only Arrow can decode, read without the other rows."""

import random
from typing import Any

import pyarrow as pa
import pytest
from contracts.elements import VALUES

from holdfast.backends.keyed.segments.section import PartialBatch

ROWS = 500
STRUCT = pa.struct([("n", pa.int32()), ("text", pa.large_string()), ("is", pa.bool_())])
NESTED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "struct": (STRUCT, [{"n": 1, "text": "x", "is": True}, {"n": None, "text": None, "is": None}]),
    "list": (pa.list_(pa.int64()), [[1, 2, None], [], [3]]),
    "list of lists": (pa.list_(pa.list_(pa.string())), [[["a", None], []], [], [None, ["bc"]]]),
    "large list": (pa.large_list(STRUCT), [[{"n": 7, "text": "", "is": False}], [None]]),
    "fixed list": (pa.list_(pa.bool_(), 3), [[True, False, None], [False] * 3]),
    "map": (pa.map_(pa.string(), pa.list_(STRUCT)), [[("a", []), ("b", None)], []]),
    "fixed bytes": (pa.binary(5), [b"12345", b"abcde"]),
    "views": (pa.list_(pa.string_view()), [["short", "longer than twelve bytes"], []]),
    "nothing": (pa.null(), [None]),
}
COLUMNS = {name: (kind, list(values)) for name, (kind, values) in VALUES.items()} | NESTED


def section_of(name: str) -> tuple[pa.Buffer, pa.RecordBatch]:
    """Make a section with a nullable column of a type between others."""
    kind, values = COLUMNS[name]
    random_ = random.Random(name)
    chosen = pa.array([random_.choice([*values, None]) for _ in range(ROWS)], kind)
    numbers = pa.array(range(ROWS), pa.uint64())
    batch = pa.record_batch([numbers, chosen, numbers], ["hi", "value", "n"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue(), batch


@pytest.mark.parametrize("name", COLUMNS)
def test_partial_rows_equal_rows_of_the_whole_section(name: str) -> None:
    stored, batch = section_of(name)
    for first, count in ((0, 1), (0, ROWS), (7, 9), (8, 8), (63, 130), (ROWS - 1, 1)):
        part = PartialBatch(stored.slice, stored.size)
        assert (part.schema, part.rows) == (batch.schema, ROWS)
        rows = part.column_between(1, first, first + count)
        assert rows.equals(batch.column(1).slice(first, count))


def test_only_requested_rows_of_large_values_are_read() -> None:
    texts = pa.array([None, *("x" * 1000 for _ in range(2000))])
    batch = pa.record_batch([texts], ["value"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    stored = sink.getvalue()
    lengths: list[int] = []

    def read(offset: int, length: int) -> pa.Buffer:
        lengths.append(length)
        return stored.slice(offset, length)

    part = PartialBatch(read, stored.size)
    assert sum(lengths) <= 2 << 16
    lengths.clear()
    assert part.column_between(0, 1500, 1502).to_pylist() == ["x" * 1000] * 2
    assert sum(lengths) < 3000


@pytest.mark.parametrize("name", ["list", "map", "large list"])
def test_invalid_offsets_raise(name: str) -> None:
    stored, batch = section_of(name)
    offsets = batch.column(1).buffers()[1].to_pybytes()
    content = bytearray(stored.to_pybytes())
    at = content.index(offsets)
    width = len(offsets) // (ROWS + 1)
    for wrong in (-5, 1 << 30):
        content[at + 10 * width : at + 11 * width] = wrong.to_bytes(width, "little", signed=True)
        broken = pa.py_buffer(bytes(content))
        with pytest.raises((ValueError, pa.ArrowException)):
            PartialBatch(broken.slice, broken.size).column_between(1, 9, 10)


@pytest.mark.parametrize("length", [7, 20, 200])
def test_truncated_section_raises(length: int) -> None:
    stored, _ = section_of("list")
    cut = stored.slice(0, length)
    with pytest.raises((ValueError, pa.ArrowException)):
        PartialBatch(cut.slice, length)
