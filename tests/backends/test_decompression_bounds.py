"""Small stored bytes that would be huge once decompressed."""

import io
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from contracts.elements import list_state

from holdfast.backends import OperatorStateBackend
from holdfast.backends.arrow import blocks_of, refuse_compressed
from holdfast.backends.keyed.segments.section import PartialBatch, Section
from holdfast.backends.keyed.segments.trailer import ColumnPlace, SectionPlace
from holdfast.backends.snapshot import Compression, read_blocks
from holdfast.errors import CheckpointCorruptedError
from holdfast.locations import FileSystemCheckpointStorage
from holdfast.locations.handles import (
    ByteStreamStateHandle,
    OperatorStateHandle,
    OperatorStateMode,
    StatePartitions,
)
from holdfast.spark.checkpoint_location import zip_parts

MIB = 1 << 20
ZEROS = 160 * MIB


def arrow_file(column: pa.Array, name: str = "element", **options: Any) -> bytes:
    sink = io.BytesIO()
    schema = pa.schema([(name, column.type)])
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(pa.record_batch([column], schema=schema))
    return sink.getvalue()


def zeros() -> pa.Array:
    return pa.array(np.zeros(ZEROS // 8))


def words() -> pa.Array:
    """Return as many bytes in a dictionary, which is a separate block."""
    return pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([b"\0" * ZEROS]))


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize("column", [zeros, words])
def test_decompression_bomb_is_rejected_unread(
    column: Callable[[], pa.Array], compression: str
) -> None:
    bomb = arrow_file(column(), compression=compression)
    assert len(bomb) < MIB
    stream = ByteStreamStateHandle(bomb)
    place = StatePartitions(OperatorStateMode.SPLIT_DISTRIBUTE, 0, len(bomb), 0, 1)
    allocated = pa.total_allocated_bytes()
    pool = pa.default_memory_pool()
    before = pool.max_memory()
    with pytest.raises(CheckpointCorruptedError, match=r"'s' can't be decoded .*claim to be"):
        OperatorStateBackend.restore([OperatorStateHandle({"s": place}, stream)])
    with pytest.raises(CheckpointCorruptedError, match=r"'s' can't be decoded .*claim to be"):
        list(read_blocks(stream, 0, len(bomb), name="s"))
    assert pool.max_memory() - max(before, allocated) < 16 * MIB


def test_blocks_larger_than_their_file_are_rejected() -> None:
    sink = io.BytesIO()
    schema = pa.schema([("element", pa.int64())])
    with pa.ipc.new_file(sink, schema) as writer:
        for rows in (8, 100_000):
            writer.write_batch(pa.record_batch([pa.array(range(rows))], schema=schema))
    file = sink.getvalue()
    small, large = blocks_of(lambda at, size: file[at : at + size], len(file))[1]
    old, new = (struct.pack("<qi4xq", *block) for block in (small, large))
    assert file.count(old) == 1
    stream = ByteStreamStateHandle(file.replace(old, new))
    with pytest.raises(CheckpointCorruptedError, match=r"blocks of \d+ bytes in a file"):
        list(read_blocks(stream, 0, len(file), name="s"))


def test_compressed_segment_is_rejected() -> None:
    content = pa.py_buffer(arrow_file(zeros(), "v", compression="zstd"))
    with pytest.raises(ValueError, match="claim to be"):
        PartialBatch(content.slice, content.size)
    rows = ZEROS // 8
    place = SectionPlace("t", rows, (0, content.size), (ColumnPlace("v", "arrow", ()),))
    with pytest.raises(CheckpointCorruptedError, match=r"can't be decoded .*claim to be"):
        Section(_Bytes(content), place).column("v", pa.float64())


class _Bytes:
    """A segment that consists of a section."""

    def __init__(self, content: pa.Buffer) -> None:
        self._content = content

    def read(self, offset: int, length: int, /) -> pa.Buffer:
        return self._content.slice(offset, length)

    def advise(self, *, sequential: bool) -> None:
        pass

    def corrupted_error(self, message: str, /) -> CheckpointCorruptedError:
        return CheckpointCorruptedError(message)


def test_compressed_stream_is_rejected() -> None:
    for compression in (None, "zstd"):
        sink = pa.BufferOutputStream()
        batch = pa.record_batch([pa.array([0.0] * 100)], ["row"])
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
            writer.write_batch(batch)
        if compression is None:
            refuse_compressed(sink.getvalue().to_pybytes())
        else:
            with pytest.raises(ValueError, match="is compressed"):
                refuse_compressed(sink.getvalue().to_pybytes())


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize(
    ("type", "values"),
    [
        (pa.binary(), [b"\0" * 40 * MIB, b"small"]),
        (pa.binary(), [b"small"] * 1000),
        (pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())])), [[], [{"a": 1, "b": "c"}]]),
        (pa.binary(), [bytes(MIB)] * 48),
    ],
    ids=["one large value", "small values", "nested values", "several blocks"],
)
def test_compressed_state_is_read(
    type: pa.DataType, values: list[Any], compression: Compression, memory_directory: str
) -> None:
    storage = FileSystemCheckpointStorage(memory_directory)
    access = storage.create_checkpoint_storage("job")
    access.initialize_base_locations_for_checkpoint()
    backend = OperatorStateBackend()
    list_state(backend, "s", type).add_all(values)
    location = access.initialize_location_for_checkpoint(1)
    (handle,) = backend.snapshot(location, compression=compression).run().state.managed_operator
    restored = OperatorStateBackend.restore([handle])
    assert list(list_state(restored, "s", type).get()) == values
    place = handle.states["s"]
    blocks = read_blocks(handle.stream, place.offset, place.length, name="s")
    assert sum(len(block) for block in blocks) == len(values)


def test_spark_zip_with_a_huge_description_is_rejected() -> None:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("metadata", "v1\n" + " " * 70 * MIB + "{}")
    with pytest.raises(CheckpointCorruptedError, match="more than"):
        zip_parts("state/0/0/1.zip", lambda: io.BytesIO(sink.getvalue()))
