"""Write a segment: sections with their side tables, then the trailer."""

from collections.abc import Callable, Sequence

import pyarrow as pa

from holdfast.backends.keyed.segments.checkpoint_files import new_segment_name
from holdfast.backends.keyed.segments.side_tables import MIN_ROWS, build_directory, build_filter
from holdfast.backends.keyed.segments.trailer import (
    ALIGNMENT,
    ARROW_KIND,
    BLOCK_BYTES,
    TEXT_KINDS,
    ColumnPlace,
    DirectoryPlace,
    FilterPlace,
    SectionPlace,
    Trailer,
    column_kind,
    encode_trailer,
    header,
)
from holdfast.backends.keyed.table import SortKeys
from holdfast.locations.checksums import Checksum, ChecksumBuilder
from holdfast.locations.file_systems import BytesLike

_MIN_ROWS_FOR_BOTH = 32 * MIN_ROWS
"""A section with a filter and at least this many rows also has a directory."""


class SegmentWriter:
    """Writer of one segment. `write` appends a buffer to it, which it keeps or has written when it returns."""

    def __init__(self, write: Callable[[BytesLike], object]) -> None:
        self.name = new_segment_name()
        self._write = write
        self._checksum = ChecksumBuilder(BLOCK_BYTES)
        self._sections: list[SectionPlace] = []
        self.size = 0
        self._append(header())

    @property
    def sections(self) -> int:
        return len(self._sections)

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
        start = self.size
        sink = _Sink(self._append, start)
        with pa.PythonFile(sink, mode="w") as file, pa.ipc.new_file(file, batch.schema) as writer:
            writer.write_batch(batch)
        if sink.error is not None:
            raise sink.error
        place = (start, self.size - start)
        self._pad()
        directory = filter_ = None
        if len(sort_keys) >= MIN_ROWS:
            if not has_filter or len(sort_keys) >= _MIN_ROWS_FOR_BOTH:
                directory = self._add_directory(sort_keys)
            if has_filter:
                filter_ = self._add_filter(sort_keys)
        places = tuple(map(sink.place_of, batch.schema.names, batch.columns))
        section = SectionPlace(table, batch.num_rows, place, places, directory, filter_)
        self._sections.append(section)
        return len(self._sections) - 1

    def finish(self) -> Checksum:
        """Append the trailer, after which nothing can be added; return the checksum of all bytes for a handle."""
        blocks = self._checksum.finish()
        tail = encode_trailer(Trailer(tuple(self._sections), BLOCK_BYTES, blocks.blocks))
        self._write(tail)
        whole = ChecksumBuilder()  # combined from the checksums of the blocks
        whole.add_blocks(blocks, self.size)
        whole.update(tail)
        self.size += len(tail)
        return whole.finish()

    def _add_directory(self, sort_keys: SortKeys) -> DirectoryPlace | None:
        directory = build_directory(sort_keys)
        if directory is None:
            return None
        place = self._add_side_table(directory.starts.data.cast("B"))
        return DirectoryPlace(place, directory.shift, directory.first)

    def _add_filter(self, sort_keys: SortKeys) -> FilterPlace | None:
        filter_ = build_filter(sort_keys)
        if filter_ is None:
            return None
        place = self._add_side_table(filter_.bits.data)
        return FilterPlace(place, filter_.shift, filter_.first_byte)

    def _add_side_table(self, data: memoryview) -> tuple[int, int]:
        start = self.size
        self._append(data)
        self._pad()
        return start, len(data)

    def _pad(self) -> None:
        padding = -self.size % ALIGNMENT
        if padding:
            self._append(bytes(padding))

    def _append(self, data: BytesLike) -> None:
        self._write(data)
        self._checksum.update(data)
        self.size += memoryview(data).nbytes


def _without_offset(array: pa.Array) -> pa.Array:
    """Return the array in its own buffers: Arrow would copy a slice, and its places would be unknown."""
    return pa.concat_arrays([array]) if array.offset else array


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
