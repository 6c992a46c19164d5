"""Reads of rows that are only partly on this host: the missing blocks of all slices are planned, and fetched together.

    round 1   trailers of the segments that may have the rows
    round 2   entries of directories, and bytes of filters, for the ranges of sort keys; small sections
    round 3   sort keys and columns of fixed width, at the places that round 2 leads to; offsets of texts
    round 4   texts of the rows whose sort key is in a range; validity and offsets of their nullable and nested columns
    others    values of nested columns, a round for each level

A round is one set of parallel requests. Slices whose directory came with the tail skip round 2. The rows are copied to
memory, and replace the slice in the search, which therefore never reads a byte that was not fetched.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.keyed.columns import (
    Column,
    Rows,
    concatenate,
    from_arrow,
    positions_between,
    take,
)
from holdfast.backends.keyed.segments.partial_segment import (
    Blocks,
    PartialSegment,
    prefetch,
)
from holdfast.backends.keyed.segments.rows import OpenSlice, SectionRows
from holdfast.backends.keyed.segments.section import HEAD_BYTES
from holdfast.backends.keyed.segments.trailer import (
    ARROW_KIND,
    FIXED_KINDS,
    TEXT_KINDS,
    ColumnPlace,
    DirectoryPlace,
    FilterPlace,
)
from holdfast.backends.keyed.table import Flags, SortKeys
from holdfast.errors import CheckpointCorruptedError

_SORT_KEY = pa.field("hi", pa.uint64(), nullable=False)

_ENTRY_BYTES = 4
_KEY_BYTES = 8
_NO_BLOCKS = np.empty(0, np.int64)
_MAX_TEXT_BYTES = (1 << 31) - 1


class ColdSlice:
    """The rows of a slice of a partial segment in ranges of sort keys.

    Args:
        slice_: The slice, whose source is a section of a partial segment.
        first: First sort key of each range, ascending.
        last: Last sort key of each range; not before the first one.
        use_filter: Whether the ranges are single sort keys, and most are expected to be absent.
        endings: As of `StateTable.rows_between`.
    """

    def __init__(
        self,
        slice_: OpenSlice,
        first: SortKeys,
        last: SortKeys,
        *,
        use_filter: bool = False,
        endings: Flags | None = None,
    ) -> None:
        assert isinstance(slice_.source, SectionRows)
        self._slice = slice_
        self._source = slice_.source
        self._section = slice_.source.section
        segment = self._section.segment
        assert isinstance(segment, PartialSegment)
        self._segment = segment
        place = self._section.place
        self._directory: DirectoryPlace | None = place.directory
        # Without a directory the sort keys near the ranges are read, so that the filter is of no use.
        self._filter: FilterPlace | None = (
            place.filter if use_filter and place.directory is not None else None
        )
        self._is_small = place.place[1] <= segment.policy.small_bytes
        first = np.maximum(first, np.uint64(slice_.first))
        last = np.minimum(last, np.uint64(slice_.end - 1))
        self._first, self._last = first[first <= last], last[first <= last]
        self._rows: Rows = np.empty(0, np.int64)
        self._endings = endings
        self.section_rows = self._section.rows
        self._nested = [f for f in self._source.fields if self._place(f).kind == ARROW_KIND]
        self._columns: dict[str, Column] = {}

    def index_blocks(self) -> tuple[PartialSegment, Blocks]:
        """Return the blocks of round 2."""
        parts: list[Blocks] = []
        if self._is_small:
            parts.append(self._blocks_of(self._section.place.place))
        if self._directory is not None:
            at = self._directory.place[0] + _ENTRY_BYTES * np.concatenate(self._buckets())
            parts.append(self._segment.blocks_at(at, at + _ENTRY_BYTES))
        else:
            self._rows = self._rows_by_samples()
            parts.append(self.key_blocks()[1])
            places = [self._place(field) for field in self._source.fields]
            columns = [place.buffers[0] for place in places if place.kind != ARROW_KIND]
            if sum(length for _, length in columns) <= self._segment.policy.small_bytes:
                parts += map(self._blocks_of, columns)
        if self._nested and not self._is_small:
            start, length = self._section.place.place
            head = min(HEAD_BYTES, length)
            parts.append(self._blocks_of((start, head)))
            parts.append(self._blocks_of((start + length - head, head)))
        if self._filter is not None:
            _, byte = self._places_in_filter(self._filter)
            at = self._filter.place[0] + byte
            parts.append(self._segment.blocks_at(at, at + 1))
        return self._segment, np.concatenate(parts)

    def has_index(self) -> bool:
        """Return whether the blocks of round 2 are on this host, for example because they came with the tail."""
        segment, blocks = self.index_blocks()
        return self._endings is None and segment.has(blocks)

    def find_rows(self) -> None:
        """Find the rows that may be in the ranges."""
        if self._filter is not None:
            inside, byte = self._places_in_filter(self._filter)
            bits = self._array(self._filter.place[0], self._filter.place[1], np.uint8).take(byte)
            prefixes = (self._first[inside] >> np.uint64(self._filter.shift)).astype(np.uint8)
            passed = inside[(bits >> (prefixes & np.uint8(7)) & np.uint8(1)).nonzero()[0]]
            self._first, self._last = self._first[passed], self._last[passed]
        if self._directory is not None:
            low, high = map(self._bucket_starts, self._buckets())
            self._rows = np.unique(positions_between(low, high))
        else:
            self._rows = self._rows_by_samples()
            self._drop_other_rows()

    def find_first_rows(self) -> None:
        """Find a few rows, including the first one that is not before the first sort key of each range."""
        if self._directory is None:
            self._rows = self._rows_by_samples()
            return
        self.find_rows()
        after = self._bucket_starts(self._buckets()[1])
        rows = np.unique(np.concatenate([[0], self._rows, after]))
        self._rows = rows[rows < self._section.rows]

    def key_blocks(self) -> tuple[PartialSegment, Blocks]:
        """Return the blocks of the sort keys of the rows."""
        if not len(self._rows) or self._is_small:
            return self._segment, _NO_BLOCKS
        at = self._place(_SORT_KEY).buffers[0][0] + self._rows * _KEY_BYTES
        return self._segment, self._segment.blocks_at(at, at + _KEY_BYTES)

    def sort_keys(self) -> SortKeys:
        """Return the sort keys of the rows, once their blocks have been fetched."""
        place = self._place(_SORT_KEY)
        sort_keys = self._array(place.buffers[0][0], self._section.rows, np.dtype("<u8"))
        return sort_keys.take(self._rows)

    def ending_blocks(self) -> tuple[PartialSegment, Blocks]:
        """Return the blocks of the sort keys if rows are chosen by their endings: this may be most of the rows."""
        return self.key_blocks() if self._endings is not None else (self._segment, _NO_BLOCKS)

    def fixed_blocks(self) -> tuple[PartialSegment, Blocks]:
        """Return the blocks of round 3."""
        if self._endings is not None:
            self._drop_other_rows()
        if not len(self._rows) or self._is_small:
            return self._segment, _NO_BLOCKS
        parts = []
        for place in map(self._place, (_SORT_KEY, *self._source.fields)):
            if place.kind == ARROW_KIND:
                continue
            width, extra = _width(place), int(place.kind in TEXT_KINDS)
            at = place.buffers[0][0] + self._rows * width
            parts.append(self._segment.blocks_at(at, at + (1 + extra) * width))
        return self._segment, np.concatenate(parts)

    def text_blocks(self) -> tuple[PartialSegment, Blocks]:
        """Return the blocks of round 4."""
        self._drop_other_rows()
        parts = [np.empty(0, np.int64)]
        for field in self._source.fields:
            place = self._place(field)
            if place.kind in TEXT_KINDS and len(self._rows) and not self._is_small:
                starts, ends = self._text_bounds(place)
                has_bytes = ends > starts
                at = place.buffers[1][0]
                parts.append(self._segment.blocks_at(at + starts[has_bytes], at + ends[has_bytes]))
        return self._segment, np.concatenate(parts)

    def nested_blocks(self) -> tuple[PartialSegment, Blocks]:
        """Return the blocks that nullable and nested columns still miss; after fetching them, those of the next level."""
        with self._segment.without_requests() as missing:
            try:
                self._columns = {field.name: self._read_nested(field) for field in self._nested}
            except CheckpointCorruptedError:
                if not missing:
                    raise
        if missing:
            self._section.forget_batch()
        return self._segment, np.concatenate([*missing, np.empty(0, np.int64)])

    def _read_nested(self, field: pa.Field) -> Column:
        # Rows between those of the ranges are read with them if their bytes fill no block.
        row_bytes = max(1, self._section.place.place[1] // max(1, self._section.rows))
        max_step = 1 + self._segment.block_bytes // row_bytes
        steps = np.diff(self._rows, prepend=-1 - max_step, append=1 << 62)
        pieces = []
        for first, end in pairwise(np.flatnonzero(steps > max_step).tolist()):
            rows = self._rows[first:end]
            piece = self._section.column_between(
                field.name, field.type, int(rows[0]), int(rows[-1]) + 1
            )
            pieces.append(take(piece, rows - rows[0]))
        return concatenate(pieces or [from_arrow(pa.array([], field.type))], field.type)

    def load(self) -> OpenSlice:
        """Return the slice with these rows in memory, once all rounds have ended."""
        rows = self._source.build_rows(self.sort_keys(), self._read)
        return OpenSlice(rows, self._slice.first, self._slice.end, self._slice.deleted_up_to_ms)

    def _rows_by_samples(self) -> Rows:
        """Return rows, among them all in the ranges, and the first one after each; all rows without samples."""
        samples = None if self._is_small else self._section.samples
        if samples is None:
            return np.arange(self._section.rows)
        low, high = samples.steps_between(self._first, self._last)
        steps = np.unique(positions_between(low, high)) * samples.step
        inside = positions_between(steps, steps + samples.step)
        rows = np.unique(np.concatenate([inside, high * samples.step]))
        return rows[rows < self._section.rows]

    def _buckets(self) -> tuple[Rows, Rows]:
        """Return the first bucket of each range, and the end; both are places of entries in the directory."""
        assert self._directory is not None
        end = self._directory.place[1] // _ENTRY_BYTES - 1
        first, shift = np.uint64(self._directory.first), np.uint64(self._directory.shift)
        inside = self._last >= first
        low = (np.maximum(self._first[inside], first) - first) >> shift
        high = ((self._last[inside] - first) >> shift) + np.uint64(1)
        edge = np.uint64(end)
        return np.minimum(low, edge).astype(np.int64), np.minimum(high, edge).astype(np.int64)

    def _bucket_starts(self, buckets: Rows) -> Rows:
        """Return the first row of each bucket."""
        assert self._directory is not None
        offset, length = self._directory.place
        starts = self._array(offset, length // _ENTRY_BYTES, np.dtype("<u4"))
        rows: Rows = starts.take(buckets).astype(np.int64)
        return rows

    def _places_in_filter(self, place: FilterPlace) -> tuple[Rows, Rows]:
        """Return the ranges, which are single sort keys, whose prefix the filter has, and the byte of each in it."""
        byte = (self._first >> np.uint64(place.shift + 3)).astype(np.int64) - place.first_byte
        inside = ((byte >= 0) & (byte < place.place[1])).nonzero()[0]
        return inside, byte[inside]

    def _drop_other_rows(self) -> None:
        """Drop the rows whose sort key is in no range, or has another ending."""
        if not len(self._rows):
            return
        sort_keys = self.sort_keys()
        if self._endings is not None:
            has_ending = self._endings.take(sort_keys.astype(np.uint16))
            self._rows, sort_keys = self._rows[has_ending], sort_keys[has_ending]
        at = self._first.searchsorted(sort_keys, "right") - 1
        if not len(self._first):
            self._rows = self._rows[:0]
            return
        self._rows = self._rows[(at >= 0) & (sort_keys <= self._last.take(np.maximum(at, 0)))]

    def _read(self, field: pa.Field) -> Column:
        """Return a column of the rows."""
        place = self._place(field)
        if place.kind in FIXED_KINDS:
            at = place.buffers[0][0]
            return self._array(at, self._section.rows, np.dtype(place.kind)).take(self._rows)
        if place.kind == ARROW_KIND:
            return self._columns[field.name]
        starts, ends = self._text_bounds(place)
        offsets = np.zeros(len(starts) + 1, np.int64)
        np.cumsum(ends - starts, out=offsets[1:])
        if offsets[-1] > _MAX_TEXT_BYTES and _width(place) == 4:
            return take(self._section.column(field.name, field.type), self._rows)
        view = memoryview(self._segment.buffer)[place.buffers[1][0] :]
        if (starts[1:] == ends[:-1]).all():  # of adjacent rows
            pairs = [(int(starts[0]), int(ends[-1]))] if len(starts) else []
        else:
            pairs = list(zip(starts.tolist(), ends.tolist(), strict=True))
        text = b"".join([view[start:end] for start, end in pairs])
        buffers = [None, pa.py_buffer(offsets.astype(f"<i{_width(place)}")), pa.py_buffer(text)]
        return pa.Array.from_buffers(field.type, len(starts), buffers)

    def _text_bounds(self, place: ColumnPlace) -> tuple[Rows, Rows]:
        (at, _), (_, length) = place.buffers
        offsets = self._array(at, self._section.rows + 1, np.dtype(f"<i{_width(place)}"))
        starts = offsets.take(self._rows).astype(np.int64)
        ends = offsets.take(self._rows + 1).astype(np.int64)
        if ((starts < 0) | (ends < starts) | (ends > length)).any():
            message = f"offsets of column {place.name!r} are not ascending"
            raise self._segment.corrupted_error(message)
        return starts, ends

    def _array(self, offset: int, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return numbers of the segment. Only fetched ones may be read."""
        return np.frombuffer(self._segment.buffer, dtype, count, offset)

    def _blocks_of(self, place: tuple[int, int]) -> Blocks:
        return self._segment.blocks_between(place[0], place[0] + place[1])

    def _place(self, field: pa.Field) -> ColumnPlace:
        return self._section.column_place(field.name, field.type)


def fetch_rows(slices: Sequence[ColdSlice]) -> list[OpenSlice]:
    """Fetch the rows of slices in three rounds, after that of the trailers, or more for endings and nested columns.

    Returns them in memory.

    Raises as `PartialSegment`.
    """
    indexed = [slice_ for slice_ in slices if slice_.has_index()]
    others = [slice_ for slice_ in slices if slice_ not in indexed]
    for slice_ in indexed:
        slice_.find_rows()
    prefetch(
        [slice_.index_blocks() for slice_ in others] + [slice_.fixed_blocks() for slice_ in indexed]
    )
    for slice_ in others:
        slice_.find_rows()
    prefetch([slice_.ending_blocks() for slice_ in others])
    prefetch([slice_.fixed_blocks() for slice_ in others])
    wanted = [slice_.text_blocks() for slice_ in slices]
    wanted += [slice_.nested_blocks() for slice_ in slices]
    while any(len(blocks) for _, blocks in wanted):
        prefetch(wanted)
        wanted = [slice_.nested_blocks() for slice_ in slices]
    return [slice_.load() for slice_ in slices]


def fetch_sort_keys(slices: Sequence[ColdSlice]) -> list[SortKeys]:
    """Fetch the sort keys of the rows in the ranges, and few others, in at most two rounds. Raises as `PartialSegment`."""
    return _fetch_keys(slices, ColdSlice.find_rows)


def fetch_first_keys(slices: Sequence[ColdSlice]) -> list[SortKeys]:
    """Fetch sort keys, among them the first that is not before the first one of each range, in at most two rounds.

    Raises as `PartialSegment`.
    """
    return _fetch_keys(slices, ColdSlice.find_first_rows)


def _fetch_keys(slices: Sequence[ColdSlice], find: Callable[[ColdSlice], None]) -> list[SortKeys]:
    prefetch(slice_.index_blocks() for slice_ in slices)
    for slice_ in slices:
        find(slice_)
    prefetch([slice_.key_blocks() for slice_ in slices])
    return [slice_.sort_keys() for slice_ in slices]


def _width(place: ColumnPlace) -> int:
    width = TEXT_KINDS.get(place.kind)
    return np.dtype(place.kind).itemsize if width is None else width
