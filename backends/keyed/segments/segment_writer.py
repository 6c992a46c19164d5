"""Write a segment: sections, then their side tables, then the trailer."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.keyed.segments.checkpoint_files import new_segment_name
from holdfast.backends.keyed.segments.side_tables import (
    MIN_ROWS,
    Directory,
    Filter,
    Samples,
    build_directory,
    build_filter,
    build_samples,
)
from holdfast.backends.keyed.segments.trailer import (
    ALIGNMENT,
    ARROW_KIND,
    BLOCK_BYTES,
    BLOCK_BYTES_OF_LARGE_ROWS,
    LARGE_ROW_BYTES,
    TEXT_KINDS,
    ColumnPlace,
    DirectoryPlace,
    FilterPlace,
    SamplesPlace,
    SectionPlace,
    Trailer,
    column_kind,
    encode_trailer,
    header,
)
from holdfast.backends.keyed.table import SortKeys
from holdfast.locations.checksums import Checksum, ChecksumBuilder
from holdfast.locations.file_systems import BytesLike

MAX_SEGMENT_BYTES = 64 << 20
"""Sections that would make a segment larger than this are written to the next one, if the segment has others already."""

_MIN_ROWS_FOR_BOTH = 32 * MIN_ROWS
"""A section with a filter and at least this many rows also has a directory."""


class SegmentWriter:
    """Writer of one segment. `write` appends a buffer to it, which it keeps or has written when it returns.

    Side tables are kept until `finish`.

    Attributes:
        name: The segment's name.
        size: Bytes written so far.
        tail_bytes: Length of the tail, after `finish`.
    """

    def __init__(self, write: Callable[[BytesLike], object]) -> None:
        self.name = new_segment_name()
        self.size = 0
        self.tail_bytes = 0
        self._write = write
        self._block_bytes = 0  # until there is a section
        self._checksum = ChecksumBuilder()
        self._sections: list[SectionPlace] = []
        self._directories: dict[int, Directory] = {}  # by section
        self._samples: dict[int, Samples] = {}
        self._filters: dict[int, Filter] = {}

    def add_section(
        self,
        table: str,
        sort_keys: SortKeys,
        columns: Sequence[tuple[pa.Field, pa.Array]],
        *,
        has_filter: bool = False,
    ) -> int:
        """Append a section of at least one row, by ascending sort keys; return its number.

        A large enough section gets a filter if `has_filter` is set, because most lookups are expected to miss it.
        """
        fields = [pa.field("hi", pa.uint64(), nullable=False), *(field for field, _ in columns)]
        arrays = [pa.array(sort_keys), *(_without_offset(array) for _, array in columns)]
        batch = pa.record_batch(arrays, schema=pa.schema(fields))
        number = len(self._sections)
        if not number:
            self._begin(batch)
        start = self.size
        sink = _Sink(self._append, start)
        with pa.PythonFile(sink, mode="w") as file, pa.ipc.new_file(file, batch.schema) as writer:
            writer.write_batch(batch)
        if sink.error is not None:
            raise sink.error
        place = (start, self.size - start)
        self._pad()
        self._build_side_tables(number, sort_keys, has_filter=has_filter)
        places = tuple(map(sink.place_of, batch.schema.names, batch.columns))
        self._sections.append(SectionPlace(table, batch.num_rows, place, places))
        return number

    def finish(self) -> Checksum:
        """Append side tables and trailer, after which nothing can be added; return the checksum of all bytes for a handle."""
        end_of_sections = self.size
        self._add_side_tables()
        tail_start = self.size
        if self.size > end_of_sections:
            tail_start = end_of_sections - end_of_sections % self._block_bytes
        blocks = self._checksum.finish()
        trailer = encode_trailer(Trailer(tuple(self._sections), self._block_bytes, blocks.blocks))
        self._write(trailer)
        whole = ChecksumBuilder()  # combined from the checksums of the blocks
        whole.add_blocks(blocks, self.size)
        whole.update(trailer)
        self.size += len(trailer)
        self.tail_bytes = self.size - tail_start
        return whole.finish()

    def _begin(self, batch: pa.RecordBatch) -> None:
        """Append the header; the rows of the first section decide about the size of blocks."""
        has_large_rows = batch.nbytes > LARGE_ROW_BYTES * batch.num_rows
        self._block_bytes = BLOCK_BYTES_OF_LARGE_ROWS if has_large_rows else BLOCK_BYTES
        self._checksum = ChecksumBuilder(self._block_bytes)
        self._append(header())

    def _build_side_tables(self, section: int, sort_keys: SortKeys, *, has_filter: bool) -> None:
        if len(sort_keys) < MIN_ROWS:
            return
        directory = None
        if not has_filter or len(sort_keys) >= _MIN_ROWS_FOR_BOTH:
            directory = build_directory(sort_keys)
        if directory is not None:
            self._directories[section] = directory
        else:
            self._samples[section] = build_samples(sort_keys)
        if has_filter:
            filter_ = build_filter(sort_keys)
            if filter_ is not None:
                self._filters[section] = filter_

    def _add_side_tables(self) -> None:
        """Append all directories, then smaller tables, which are the more likely to be in a reader's first request."""
        for number, directory in self._directories.items():
            place = self._add_side_table(directory.starts)
            self._sections[number] = msgspec.structs.replace(
                self._sections[number],
                directory=DirectoryPlace(place, directory.shift, directory.first),
            )
        for number, samples in self._samples.items():
            place = self._add_side_table(samples.sort_keys)
            self._sections[number] = msgspec.structs.replace(
                self._sections[number], samples=SamplesPlace(place, samples.step)
            )
        for number, filter_ in self._filters.items():
            place = self._add_side_table(filter_.bits)
            self._sections[number] = msgspec.structs.replace(
                self._sections[number],
                filter=FilterPlace(place, filter_.shift, filter_.first_byte),
            )

    def _add_side_table(self, entries: npt.NDArray[Any]) -> tuple[int, int]:
        start = self.size
        self._append(entries.data.cast("B"))
        self._pad()
        return start, entries.nbytes

    def _pad(self) -> None:
        padding = -self.size % ALIGNMENT
        if padding:
            self._append(bytes(padding))

    def _append(self, data: BytesLike) -> None:
        self._write(data)
        self._checksum.update(data)
        self.size += memoryview(data).nbytes


def _without_offset(array: pa.Array) -> pa.Array:
    """Return the array in its own buffers: Arrow would copy parts of a slice, whose places would be unknown."""
    if not array.offset:
        return array
    width = TEXT_KINDS.get(str(array.type))
    if width is None or array.null_count:
        return pa.concat_arrays([array])
    _, at, text = array.buffers()
    offsets = np.frombuffer(at, f"<i{width}", len(array) + 1, array.offset * width)
    first, end = int(offsets[0]), int(offsets[-1])
    buffers = [None, pa.py_buffer(offsets - first), text and text.slice(first, end - first)]
    return pa.Array.from_buffers(array.type, len(array), buffers)


class _Sink:
    """File object for Arrow that appends each buffer without a copy and records its place in the segment.

    Arrow's own positions, in the section's footer, are relative to the section's start.
    """

    closed = False

    def __init__(self, append: Callable[[BytesLike], None], start: int) -> None:
        self._append = append
        self._start = start
        self._length = 0
        self._places: dict[int, int] = {}
        self.error: BaseException | None = None

    def write(self, data: bytes | pa.Buffer) -> int:
        size = memoryview(data).nbytes
        if isinstance(data, pa.Buffer):
            self._places.setdefault(data.address, self._start + self._length)
        if self.error is None:
            try:
                self._append(memoryview(data))
            except BaseException as error:  # noqa: BLE001  # raised after Arrow has written its footer
                self.error = error
        self._length += size
        return size

    def tell(self) -> int:
        return self._length

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def place_of(self, name: str, array: pa.Array) -> ColumnPlace:
        kind = column_kind(array.type)
        buffers = array.buffers()[1:]
        if kind == ARROW_KIND or array.null_count:
            return ColumnPlace(name, ARROW_KIND, ())
        places: list[tuple[int, int]] = []
        for buffer, length in zip(buffers, _lengths(array, kind), strict=True):
            start = self._start if not length else self._places.get(buffer.address)
            if start is None:  # Arrow has written a copy
                return ColumnPlace(name, ARROW_KIND, ())
            places.append((start, length))
        return ColumnPlace(name, kind, tuple(places))


def _lengths(array: pa.Array, kind: str) -> tuple[int, ...]:
    """Return the number of bytes of each buffer that the rows of a column need."""
    width = TEXT_KINDS.get(kind)
    if width is None:
        return (len(array) * array.type.bit_width // 8,)
    offsets = memoryview(array.buffers()[1]).cast("i" if width == 4 else "q")
    return ((len(array) + 1) * width, offsets[len(array)])
