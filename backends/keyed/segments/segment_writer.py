"""Makes a segment: sections as they come, their side tables, and the trailer in the end."""

from collections.abc import Callable, Sequence
from enum import Enum

import pyarrow as pa

from holdfast.backends.keyed.columns import plain_type
from holdfast.backends.keyed.segments.side_tables import LEAST_ROWS, directory_of, filter_of
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
from holdfast.locations.file_systems import BytesLike
from holdfast.locations.handles import Checksum, ChecksumBuilder

_ROWS_WITH_BOTH = 32 * LEAST_ROWS
"""From so many rows on a section with a filter has a directory, too."""


class Needles(Enum):
    """Whether most keys that a section is asked for are expected to be in it."""

    MOSTLY_THERE = "mostly there"
    MOSTLY_ABSENT = "mostly absent"


class SegmentWriter:
    """Writes one segment.

    Args:
        write: Appends bytes to the segment; keeps them as they are, or writes them before it returns.
    """

    def __init__(self, write: Callable[[BytesLike], object]) -> None:
        self._write = write
        self._checksum = ChecksumBuilder(BLOCK_BYTES)
        self._sections: list[SectionPlace] = []
        self.size = 0
        self._append(header())

    @property
    def sections(self) -> int:
        """Number of sections that were added."""
        return len(self._sections)

    def add_section(
        self,
        table: str,
        sort_keys: SortKeys,
        columns: Sequence[tuple[pa.Field, pa.Array]],
        needles: Needles = Needles.MOSTLY_THERE,
    ) -> int:
        """Append rows of a table; returns the section's number.

        Args:
            table: The table's name.
            sort_keys: The sort keys of the rows, ascending; at least one row.
            columns: All columns but the sort keys, and their fields; each as long as these.
            needles: Which side tables the section needs, if it is large enough for any.
        """
        fields = [pa.field("hi", pa.uint64(), nullable=False), *(field for field, _ in columns)]
        arrays = [pa.array(sort_keys), *(_whole(array) for _, array in columns)]
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
        if len(sort_keys) >= LEAST_ROWS:
            absent = needles is Needles.MOSTLY_ABSENT
            if not absent or len(sort_keys) >= _ROWS_WITH_BOTH:
                directory = self._add_directory(sort_keys)
            if absent:
                filter_ = self._add_filter(sort_keys)
        names = zip(batch.schema.names, batch.columns, strict=True)
        places = tuple(sink.place_of(name, array) for name, array in names)
        self._sections.append(
            SectionPlace(table, batch.num_rows, place, places, directory, filter_)
        )
        return len(self._sections) - 1

    def finish(self) -> Checksum:
        """Append the trailer; the writer is done after it.

        Returns:
            The checksum of all bytes, as a handle has it. It is made of the trailer's own, and the bytes aren't read for it.
        """
        blocks = self._checksum.finish()
        tail = encode_trailer(Trailer(tuple(self._sections), BLOCK_BYTES, blocks.blocks))
        self._write(tail)
        whole = ChecksumBuilder()
        whole.add_blocks(blocks, self.size)
        whole.update(tail)
        self.size += len(tail)
        return whole.finish()

    def _add_directory(self, sort_keys: SortKeys) -> DirectoryPlace | None:
        directory = directory_of(sort_keys)
        if directory is None:
            return None
        place = self._add_part(directory.starts.data.cast("B"))
        return DirectoryPlace(place, directory.shift, directory.first)

    def _add_filter(self, sort_keys: SortKeys) -> FilterPlace | None:
        made = filter_of(sort_keys)
        if made is None:
            return None
        return FilterPlace(self._add_part(made.bits.data), made.shift, made.first_byte)

    def _add_part(self, data: memoryview) -> tuple[int, int]:
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


def _whole(array: pa.Array) -> pa.Array:
    """The array without rows before or behind it, which Arrow would cut off into buffers of its own."""
    return pa.concat_arrays([array]) if array.offset else array


class _Sink:
    """Collects what Arrow writes, without a copy, and notes the place of each buffer.

    Arrow notes positions in the section's footer: they count from the section's beginning.
    """

    closed = False

    def __init__(self, append: Callable[[BytesLike], None], start: int) -> None:
        self._append = append
        self._start = start
        self._length = 0
        self._places: dict[int, int] = {}
        self.error: BaseException | None = None

    def write(self, data: bytes | pa.Buffer) -> int:
        size = data.size if isinstance(data, pa.Buffer) else len(data)
        if isinstance(data, pa.Buffer):
            self._places.setdefault(data.address, self._start + self._length)
        if self.error is None:
            try:
                self._append(memoryview(data))
            except BaseException as error:  # noqa: BLE001  # raised when Arrow has written its footer
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
        """Where a column of the section is."""
        kind = column_kind(array.type, plain_type(array.type))
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
    """How many bytes of each buffer the rows of a column need."""
    width = TEXT_KINDS.get(kind)
    if width is None:
        return (len(array) * array.type.bit_width // 8,)
    offsets = memoryview(array.buffers()[1]).cast("i" if width == 4 else "q")
    return ((len(array) + 1) * width, offsets[len(array)])
