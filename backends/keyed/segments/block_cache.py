"""Verified blocks of stored segments, which a reader of several rows keeps in memory."""

import threading
from collections import OrderedDict
from collections.abc import Iterable

import pyarrow as pa

MAX_CACHED_BYTES = 64 << 20


class BlockCache:
    """The blocks that were used last, by the segment's name and the block's number. Several threads may share it.

    Names of segments are never used twice, so blocks stay valid for all checkpoints.

    Args:
        max_bytes: Maximum size of all blocks.
    """

    def __init__(self, max_bytes: int = MAX_CACHED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._blocks: OrderedDict[tuple[str, int], pa.Buffer] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, segment: str, numbers: Iterable[int]) -> list[pa.Buffer] | None:
        """Return blocks; None if one of them is missing."""
        with self._lock:
            blocks = []
            for number in numbers:
                block = self._blocks.get((segment, number))
                if block is None:
                    return None
                blocks.append(block)
                self._blocks.move_to_end((segment, number))
            return blocks

    def put(self, segment: str, number: int, block: pa.Buffer) -> None:
        """Keep a block, which must not share memory with other blocks."""
        with self._lock:
            known = self._blocks.pop((segment, number), None)
            self._bytes += block.size - (known.size if known is not None else 0)
            self._blocks[segment, number] = block
            while self._bytes > self._max_bytes:
                _, oldest = self._blocks.popitem(last=False)
                self._bytes -= oldest.size
