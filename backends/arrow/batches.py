"""Batches of a size that Arrow and the memory can take: gathered, split, and without memory that they only share.

Usual columns of text, bytes and lists count in 32 bits: some operations on 2 GiB of them raise, others return several
arrays.

A slice of most columns is written without the rest. Three types are not: views keep all texts that the column was made
with, dictionaries all values, list views all items. After a rescale ten subtasks may share such a state, and each would
store all of it. `trim_rows` prevents that.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

from holdfast.backends.arrow.nesting import (
    children_of,
    is_list_view,
    mapped_type,
    offsets_of,
    types_in,
)

_COMPACT_CHUNK_BYTES = 1 << 20
"""From this size on, the overhead of a chunk doesn't count."""

_MAX_CHUNK_BYTES = 1 << 30
"""Arrow's usual strings and lists count in 32 bits: concatenating 2 GiB of them fails."""

MAX_BATCH_BYTES = 1 << 30
"""Half of a column's capacity, since sizes of rows are known on average."""


def size_of(rows: pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table) -> int:
    """Bytes of the rows; for views, before pyarrow 24, those of all buffers that they have a part of."""
    try:
        return int(rows.nbytes)
    except pa.ArrowTypeError:
        return int(rows.get_total_buffer_size())


def gather(
    batches: Iterable[pa.RecordBatch], max_rows: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Gather rows in few large batches. No batch is empty, or too large for Arrow, or continued at `max_rows` rows."""
    gathered: list[pa.RecordBatch] = []
    rows = gathered_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if gathered and gathered_bytes + size_of(batch) > MAX_BATCH_BYTES:
            yield _concatenate(gathered)
            gathered, rows, gathered_bytes = [], 0, 0
        gathered.append(batch)
        rows += batch.num_rows
        gathered_bytes += size_of(batch)
        if max_rows is not None and rows >= max_rows:
            yield _concatenate(gathered)
            gathered, rows, gathered_bytes = [], 0, 0
    if gathered:
        yield _concatenate(gathered)


def compact_chunks(elements: pa.ChunkedArray, *, shared_bytes: int) -> pa.ChunkedArray:
    """Put elements into few chunks: each restore adds some, which would slow down all later ones.

    Large chunks stay in the memory that they were read into or mapped from: to copy them would take as long as to read
    them.

    Args:
        elements: The restored elements.
        shared_bytes: Size of the memory that they are part of, and keep.
    """
    elements = elements.unify_dictionaries()
    is_dense = 2 * size_of(elements) >= shared_bytes
    max_bytes = _COMPACT_CHUNK_BYTES if is_dense else _MAX_CHUNK_BYTES
    groups: list[list[pa.Array]] = []
    group_bytes = 0
    for chunk in elements.chunks:
        if not groups or group_bytes + size_of(chunk) > max_bytes:
            groups.append([])
            group_bytes = 0
        groups[-1].append(chunk)
        group_bytes += size_of(chunk)
    chunks = [
        group[0] if is_dense and len(group) == 1 else pa.concat_arrays(group) for group in groups
    ]
    return pa.chunked_array(chunks, elements.type)


def take_rows(
    parts: Sequence[pa.RecordBatch], rows: npt.NDArray[np.int64]
) -> Iterator[pa.RecordBatch]:
    """Take rows by their positions among those of all parts, in few batches: a single one if Arrow can hold them."""
    count = sum(part.num_rows for part in parts)
    row_bytes = sum(map(size_of, parts)) / max(1, count)
    if len(rows) < 2 or len(rows) * row_bytes <= MAX_BATCH_BYTES:
        try:
            batch = _take(parts, rows)
        except pa.ArrowInvalid:  # offsets overflow: these rows are larger than others
            if len(rows) < 2:
                raise
        else:
            yield batch
            return
    middle = len(rows) // 2
    yield from take_rows(parts, rows[:middle])
    yield from take_rows(parts, rows[middle:])


def _concatenate(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Make one batch of several; `pa.concat_batches` exists since pyarrow 19."""
    if hasattr(pa, "concat_batches"):
        return pa.concat_batches(batches)
    columns = pa.Table.from_batches(batches).columns
    arrays = [pa.concat_arrays(column.chunks) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=batches[0].schema)


def _take(parts: Sequence[pa.RecordBatch], rows: npt.NDArray[np.int64]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0].take(pa.array(rows))
    ends = np.cumsum([part.num_rows for part in parts])
    part_of_row = np.searchsorted(ends, rows, side="right")
    order = part_of_row.argsort(kind="stable")
    batches = []
    for number, part in enumerate(parts):
        part_rows = rows[part_of_row == number]
        batches.append(part.take(pa.array(part_rows - (ends[number] - part.num_rows))))
    position = np.empty(len(rows), np.int64)
    position[order] = np.arange(len(rows))
    return _concatenate(batches).take(pa.array(position))


_VIEW_NUMBERS = 4
"""Numbers of 32 bits that a column of views has for each text; the first is the text's length."""


def trim_rows(rows: pa.Table) -> pa.Table:
    """Copy columns that keep much more memory than their rows need; returns the same table if no column does."""
    may_share = [any(map(_may_share, types_in(field.type))) for field in rows.schema]
    if not any(may_share):
        return rows
    columns = [
        pa.chunked_array([_trim(chunk) for chunk in column.chunks if len(chunk)], column.type)
        if is_checked
        else column
        for column, is_checked in zip(rows.columns, may_share, strict=True)
    ]
    return pa.table(columns, rows.schema)


def _trim(array: pa.Array) -> pa.Array:
    if not _has_slack(array):
        return array
    array = pa.concat_arrays([array])  # cuts list views, and nested types around them
    plain = mapped_type(array.type, _plain)
    if plain.equals(array.type):
        return array
    # A cast there and back copies only the used part. Arrow can't cast all types; the others stay large.
    with suppress(pa.ArrowException):
        copy = array.cast(plain).cast(array.type)
        if copy.type.equals(array.type):
            return copy
    return array


def _may_share(type: pa.DataType) -> bool:
    """Return whether columns of the type itself, without the types inside, may keep more than their rows."""
    return is_list_view(type) or not _plain(type).equals(type)


def _plain(type: pa.DataType) -> pa.DataType:
    """Return the type without views and without a dictionary; the types inside stay."""
    if types.is_string_view(type):
        return pa.large_string()
    if types.is_binary_view(type):
        return pa.large_binary()
    # The order of an ordered dictionary is more than the rows have.
    return type.value_type if types.is_dictionary(type) and not type.ordered else type


def _has_slack(array: pa.Array) -> bool:
    """Return whether the array keeps 1.5 times the memory that its rows need, or more."""
    type = array.type
    if types.is_dictionary(type):
        return bool(not type.ordered and len(array.dictionary) > len(array))
    if types.is_string_view(type) or types.is_binary_view(type):
        # An array that was concatenated may name a buffer several times.
        kept = {buffer.address: buffer.size for buffer in array.buffers()[2:] if buffer}
        return bool(2 * sum(kept.values()) > 3 * _view_bytes(array))
    if is_list_view(type):
        needed = offsets_of(array)[-1]
        return bool(2 * len(array.values) > 3 * needed) or _has_slack(array.values)
    return any(map(_has_slack, children_of(array)))


def _view_bytes(array: pa.Array) -> int:
    """Approximate length of all texts: short ones are counted, although they are stored elsewhere."""
    views = array.buffers()[1]
    count = _VIEW_NUMBERS * (views.size // (4 * _VIEW_NUMBERS))
    numbers = pa.Array.from_buffers(pa.int32(), count, [None, views]).to_numpy()
    first, end = (_VIEW_NUMBERS * row for row in (array.offset, array.offset + len(array)))
    return int(numbers[first:end:_VIEW_NUMBERS].sum(dtype="int64"))
