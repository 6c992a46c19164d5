"""Rows of a micro-batch that may be more than a column of Arrow holds.

Usual columns of text, bytes and lists count in 32 bits: some operations on 2 GiB of them raise, others give several arrays.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

MAX_BATCH_BYTES = 1 << 30
"""Half of what a column holds, since sizes of rows are known on average."""


def size_of(rows: pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table) -> int:
    """Bytes of the rows; with views before pyarrow 24 those of all buffers that they have a part of."""
    try:
        return int(rows.nbytes)
    except pa.ArrowTypeError:
        return int(rows.get_total_buffer_size())


def gather(
    batches: Iterable[pa.RecordBatch], max_rows: int | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows in few large batches, none of which is empty or too large for Arrow.

    Args:
        batches: The rows, in one schema.
        max_rows: Begin another batch at this number of rows; None for no bound.
    """
    gathered: list[pa.RecordBatch] = []
    rows = gathered_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if gathered and gathered_bytes + size_of(batch) > MAX_BATCH_BYTES:
            yield pa.concat_batches(gathered)
            gathered, rows, gathered_bytes = [], 0, 0
        gathered.append(batch)
        rows += batch.num_rows
        gathered_bytes += size_of(batch)
        if max_rows is not None and rows >= max_rows:
            yield pa.concat_batches(gathered)
            gathered, rows, gathered_bytes = [], 0, 0
    if gathered:
        yield pa.concat_batches(gathered)


def take_rows(
    parts: Sequence[pa.RecordBatch], rows: npt.NDArray[np.int64]
) -> Iterator[pa.RecordBatch]:
    """Rows in the order of their positions, in few batches: a single one where Arrow can hold them.

    Args:
        parts: All rows, in batches of one schema.
        rows: The positions of rows among those of all parts.
    """
    count = sum(part.num_rows for part in parts)
    row_bytes = sum(map(size_of, parts)) / max(1, count)
    if len(rows) < 2 or len(rows) * row_bytes <= MAX_BATCH_BYTES:
        try:
            taken = _take(parts, rows)
        except pa.ArrowInvalid:  # offsets overflow: these rows are larger than others
            if len(rows) < 2:
                raise
        else:
            yield taken
            return
    middle = len(rows) // 2
    yield from take_rows(parts, rows[:middle])
    yield from take_rows(parts, rows[middle:])


def _take(parts: Sequence[pa.RecordBatch], rows: npt.NDArray[np.int64]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0].take(pa.array(rows))
    ends = np.cumsum([part.num_rows for part in parts])
    part_of_row = np.searchsorted(ends, rows, side="right")
    order = part_of_row.argsort(kind="stable")
    taken = []
    for number, part in enumerate(parts):
        of_part = rows[part_of_row == number]
        taken.append(part.take(pa.array(of_part - (ends[number] - part.num_rows))))
    position = np.empty(len(rows), np.int64)
    position[order] = np.arange(len(rows))
    return pa.concat_batches(taken).take(pa.array(position))
