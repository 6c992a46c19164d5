"""A stored segment with only some blocks on this host; others are fetched when they are needed.

    read        fetches what is missing of the requested bytes, so code that knows nothing of missing blocks is correct
    prefetch    fetches the missing blocks of many segments in one round of parallel requests

A block is verified when it is fetched. Blocks that another process, or an earlier one, has written to the sparse file are
a hint: each process verifies a block once before it uses it, and fetches it again if it is corrupt or a hole.
"""

import logging
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.keyed.columns import Rows, positions_between
from holdfast.backends.keyed.segments.section import Section
from holdfast.backends.keyed.segments.segment import MAX_TAIL_BYTES, Segment, section_place
from holdfast.backends.keyed.segments.sparse_bytes import SparseBytes
from holdfast.backends.keyed.segments.trailer import Trailer, decode_trailer, find_corrupt_block
from holdfast.common import map_in_parallel
from holdfast.errors import CheckpointCorruptedError, CheckpointError
from holdfast.locations.file_systems import BytesLike, file_system_for
from holdfast.locations.handles import FileStateHandle
from holdfast.locations.storages import CheckpointStateOutputStream

_log = logging.getLogger(__name__)

Blocks = npt.NDArray[np.int64]
"""Numbers of blocks, ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPolicy:
    """The decision which bytes are fetched together, and by how many requests at a time.

    A request takes a round trip on one of the connections. In that time the link carries bandwidth x round trip /
    connections: 156 KB at 1 Gbit/s and 80 ms, 293 KB at 10 Gbit/s and 15 ms. Blocks that are closer to each other are
    fetched by one request.

    Attributes:
        max_tail_bytes: Maximum bytes of a segment's tail that are fetched first. The rest has parts of directories.
        small_bytes: Segments and sections up to this size are fetched whole.
        gap_bytes: Maximum bytes between two missing blocks that are fetched by one request.
        part_bytes: Maximum size of a request. Larger ranges are divided, so that several connections share them. All
            requests in progress take at most `max_requests` times this in memory.
        whole_share: All missing blocks of a segment are fetched if the requests cover more than this share of them.
        max_requests: Maximum number of requests at a time; by default fewer on hosts of many cores, which have many workers.
    """

    max_tail_bytes: int = MAX_TAIL_BYTES
    small_bytes: int = 256 << 10
    gap_bytes: int = 128 << 10
    part_bytes: int = 2 << 20
    whole_share: float = 0.5
    max_requests: int = min(64, max(16, 128 // (os.cpu_count() or 1)))

    def threads(self, uris: Iterable[str]) -> int:
        """Return the number of requests for these files at a time, which their stores can limit."""
        limits = (file_system_for(uri).range_requests for uri in uris)
        return min(self.max_requests, *limits)

    def ranges(self, missing: Blocks, block_bytes: int) -> list[tuple[int, int]]:
        """Return the ranges of blocks, the first and the end, that contain the missing ones."""
        if not len(missing):
            return []
        gaps = (np.diff(missing) - 1) * block_bytes > self.gap_bytes
        edges = np.concatenate([[True], gaps, [True]])
        firsts, lasts = missing[edges[:-1]].tolist(), missing[edges[1:]].tolist()
        step = max(1, self.part_bytes // block_bytes)
        return [
            (at, min(at + step, last + 1))
            for first, last in zip(firsts, lasts, strict=True)
            for at in range(first, last + 1, step)
        ]


class PartialSegment:
    """A segment in storage, and the blocks of it that this host has.

    Raises as `Segment.open`, and `StorageUnavailableError`.

    Args:
        name: The segment's name.
        handle: Its file in storage.
        tail_bytes: Length of its tail.
        path: The path that the local copy has when it is complete; None to keep the blocks in memory.
        policy: Decides which bytes are fetched together.
    """

    def __init__(
        self,
        name: str,
        handle: FileStateHandle,
        tail_bytes: int,
        path: str | None,
        policy: FetchPolicy,
    ) -> None:
        self.name = name
        self._tail_bytes = tail_bytes
        self.policy = policy
        self.size = handle.size
        self._handle = handle
        self._bytes = SparseBytes(path, handle.size)
        self._sections: dict[int, Section] = {}
        self._lock = threading.Lock()
        self._unread: list[Blocks] | None = None
        self._trailer, self._end = self._local_trailer() or (Trailer((), 1, b""), 0)
        self._is_verified = np.zeros(len(self._trailer.blocks) // 4, np.bool_)
        if not self._end:
            try:
                self._fetch_trailer()
            except CheckpointCorruptedError as error:
                _log.warning("segment %s is fetched again: %s", name, error)
                self._fetch_trailer()

    @property
    def location(self) -> str:
        """The sparse file, or a name for errors."""
        return self._bytes.partial_path or f"segment {self.name}"

    @property
    def buffer(self) -> pa.Buffer:
        """All bytes. Only blocks that were fetched by `prefetch` may be read."""
        return self._bytes.buffer

    @property
    def uri(self) -> str:
        """The segment in storage."""
        return self._handle.uri

    @property
    def is_on_disk(self) -> bool:
        """False if the blocks are in memory, because there is no directory or the disk is full."""
        return self._bytes.path is not None

    def lock(self) -> bool:
        """Lock the sparse file as long as this segment exists; return False if that is not possible."""
        return self._bytes.lock()

    @property
    def is_complete(self) -> bool:
        return bool(self._is_verified.all())

    def section(self, number: int) -> Section:
        """Return a section by its number. Raises `CheckpointCorruptedError` if it doesn't exist."""
        section = self._sections.get(number)
        if section is None:
            place = section_place(self, self._trailer, number)
            section = self._sections[number] = Section(self, place)
        return section

    def is_changed(self) -> bool:
        return self._bytes.is_changed()

    def fetch_from(self, handle: FileStateHandle) -> None:
        """Fetch missing blocks from a copy of the file from now on."""
        self._handle = handle

    def advise(self, *, sequential: bool) -> None:
        """Do nothing: only requested blocks are fetched."""

    def release(self) -> None:
        self._sections = {}

    def read(self, offset: int, length: int) -> pa.Buffer:
        """Return bytes; fetch and verify those that are missing."""
        if not length:
            return self.buffer.slice(offset, 0)
        blocks = self.blocks_between(offset, offset + length)
        if self._unread is None:
            prefetch([(self, blocks)])
        elif len(missing := self._missing(blocks)):
            self._unread.append(missing)
            return pa.py_buffer(bytes(length))
        return self.buffer.slice(offset, length)

    @contextmanager
    def without_requests(self) -> Iterator[list[Blocks]]:
        """Yield a list of the blocks that reads in the block miss; such a read returns zeros instead of fetching them."""
        unread: list[Blocks] = []
        self._unread = unread
        try:
            yield unread
        finally:
            self._unread = None

    def write_to(self, stream: CheckpointStateOutputStream) -> None:
        """Write all bytes, verified, to a stream."""
        self.complete()
        stream.write(self._bytes.view)

    def complete(self) -> Segment:
        """Fetch all missing blocks; return the complete segment."""
        prefetch([(self, self.all_blocks)])
        if self._bytes.path is None:
            return Segment.from_bytes(self.buffer, self.name, self._handle.uri)
        return Segment.open(self._bytes.path, self.name)

    def corrupted_error(self, message: str) -> CheckpointCorruptedError:
        return CheckpointCorruptedError(f"segment {self.name}: {message}", self._handle.uri)

    @property
    def block_bytes(self) -> int:
        return self._trailer.block_bytes

    @property
    def all_blocks(self) -> Blocks:
        return np.arange(len(self._is_verified))

    def blocks_between(self, start: int, end: int) -> Blocks:
        """Return the blocks that contain the bytes from `start` up to `end`."""
        size = self._trailer.block_bytes
        return np.arange(start // size, -(-end // size))

    def blocks_at(self, starts: Rows, ends: Rows) -> Blocks:
        """Return the blocks that contain ranges of bytes, which are not empty."""
        size = self._trailer.block_bytes
        return np.unique(positions_between(starts // size, (ends - 1) // size + 1))

    def has(self, blocks: Blocks) -> bool:
        """Return whether no block is missing."""
        return not len(self._missing(blocks))

    def section_blocks(self, number: int) -> Blocks:
        """Return the blocks of a section. Raises as `section`."""
        start, length = section_place(self, self._trailer, number).place
        return self.blocks_between(start, start + length)

    def requests_for(self, blocks: Blocks) -> "list[_Request]":
        """Return the requests for those of the blocks that are missing; for all missing ones, if these are most of them."""
        size = self._trailer.block_bytes
        ranges = self.policy.ranges(self._missing(blocks), size)
        covered = sum(end - first for first, end in ranges)
        if covered > self.policy.whole_share * (~self._is_verified).sum():
            ranges = self.policy.ranges(self._missing(self.all_blocks), size)
        return [_Request(self, first, end) for first, end in ranges]

    def fetch(self, first: int, end: int) -> None:
        """Fetch the blocks from `first` up to `end`; once again if one of them is corrupt."""
        data, corruption = self._read_blocks(first, end)
        if corruption is not None:
            _log.warning("segment %s is fetched again: %s", self.name, corruption)
            data, corruption = self._read_blocks(first, end)
        if corruption is not None:
            raise self.corrupted_error(corruption)
        self._write_blocks(first, end, data)

    def keep_if_complete(self) -> None:
        """Keep the file as the complete copy if no block is missing."""
        if self.is_complete:
            self._bytes.complete()

    def _missing(self, blocks: Blocks) -> Blocks:
        """Return the blocks that have to be fetched; first verify those that another process has written."""
        blocks = blocks[~self._is_verified[blocks]]
        if len(blocks):
            self._verify_written(blocks)
        return blocks[~self._is_verified[blocks]]

    def _verify_written(self, blocks: Blocks) -> None:
        """Verify those of the blocks that are in the sparse file."""
        size, count = self._trailer.block_bytes, len(self._is_verified)
        ranges = np.array(self._bytes.ranges(), np.int64).reshape(-1, 2)
        edges = np.zeros(count + 1, np.int64)
        np.add.at(edges, np.minimum(-(-ranges[:, 0] // size), count), 1)
        np.add.at(edges, np.where(ranges[:, 1] >= self._end, count, ranges[:, 1] // size), -1)
        is_written = np.cumsum(edges[:-1]) > 0
        for number in blocks[is_written[blocks]].tolist():
            block = self._bytes.view[number * size : min((number + 1) * size, self._end)]
            corruption = find_corrupt_block(self._trailer, [number], [block])
            self._is_verified[number] = corruption is None
            if corruption is not None and np.frombuffer(block, np.uint8).any():  # not a hole
                message = "the local copy of segment %s is corrupt, fetching a block again: %s"
                _log.warning(message, self.name, corruption)

    def _read_blocks(self, first: int, end: int) -> tuple[memoryview, str | None]:
        """Read blocks from storage; return them, and a description of the first corrupt one."""
        size = self._trailer.block_bytes
        data = self._handle.read_range(first * size, min(end * size, self._end))
        blocks = (data[at : at + size] for at in range(0, len(data), size))
        return data, find_corrupt_block(self._trailer, range(first, end), blocks)

    def _write_blocks(self, first: int, end: int, data: BytesLike) -> None:
        with self._lock:
            offset = first * self._trailer.block_bytes
            self._bytes.write(offset, data, self._verified_ranges())
            self._is_verified[first:end] = True

    def _verified_ranges(self) -> Iterator[tuple[int, int]]:
        size = self._trailer.block_bytes
        for number in self._is_verified.nonzero()[0].tolist():
            yield number * size, min((number + 1) * size, self._end)
        yield self._end, self.size

    def _local_trailer(self) -> tuple[Trailer, int] | None:
        """Read the trailer from the sparse file; None if it is missing or corrupt."""
        written = self._bytes.ranges()
        if not written or written[-1][1] < self.size:
            return None
        view = self._bytes.view
        try:
            return decode_trailer(self.size, lambda at, length: view[at : at + length], "")
        except CheckpointError:
            return None

    def _fetch_trailer(self) -> None:
        """Fetch the end of the segment, and keep its trailer and the blocks before it."""
        policy = self.policy
        tail_bytes = min(self._tail_bytes, policy.max_tail_bytes)
        start = max(0, self.size - tail_bytes) if self.size > policy.small_bytes else 0
        tail = bytes(self._handle.read_range(start, self.size))

        def read(offset: int, length: int) -> memoryview:
            nonlocal start, tail
            if offset < start:
                tail = bytes(self._handle.read_range(offset, start)) + tail
                start = offset
            return memoryview(tail)[offset - start : offset - start + length]

        self._trailer, self._end = decode_trailer(self.size, read, self._handle.uri)
        count, size = len(self._trailer.blocks) // 4, self._trailer.block_bytes
        self._is_verified = np.zeros(count, np.bool_)
        view = memoryview(tail)
        self._bytes.write(self._end, view[self._end - start :], ())
        first = -(-start // size)
        inside = view[first * size - start : self._end - start]
        blocks = (inside[at : at + size] for at in range(0, len(inside), size))
        if len(inside) and find_corrupt_block(self._trailer, range(first, count), blocks) is None:
            self._write_blocks(first, count, inside)  # else they are fetched again
        self.keep_if_complete()


class _Request(NamedTuple):
    """The request for the blocks of a segment from `first` up to `end`."""

    segment: PartialSegment
    first: int
    end: int

    @property
    def size(self) -> int:
        return (self.end - self.first) * self.segment.block_bytes

    def send(self) -> None:
        self.segment.fetch(self.first, self.end)


def prefetch(wanted: Iterable[tuple[PartialSegment, Blocks]]) -> None:
    """Fetch those of these blocks that are missing, of all segments, in one round of parallel requests.

    The first failure cancels the others. Raises as `PartialSegment`.
    """
    by_segment: dict[PartialSegment, list[Blocks]] = {}
    for segment, blocks in wanted:
        by_segment.setdefault(segment, []).append(blocks)
    requests = [
        request
        for segment, parts in by_segment.items()
        for request in segment.requests_for(np.unique(np.concatenate(parts)))
    ]
    if requests:
        policy = requests[0].segment.policy
        max_threads = policy.threads(segment.uri for segment in by_segment)
        map_in_parallel(_Request.send, requests, max_threads=max_threads)
        for segment in by_segment:
            segment.keep_if_complete()
