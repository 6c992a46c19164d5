"""The RocksDB settings, without importing RocksDB."""

import os
from dataclasses import dataclass
from typing import Literal

from holdfast.errors import InvalidRequestError

CompactionStyle = Literal["level", "universal"]
BlockCompression = Literal["none", "lz4", "zstd", "snappy"]

MIN_MEMORY_BYTES = 1 << 20
MAX_MEMORY_BYTES = 1 << 40
_MAX_WRITE_BUFFER_BYTES = 64 << 20
_BUFFERS = 4
"""Number of write buffers in the budget: of a state that is written to, and of states being flushed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RocksDBSettings:
    """The use of memory, files and threads by databases.

    Attributes:
        memory_bytes: Memory for blocks, indexes, filters and write buffers of all databases of the processes that
            share it, 1 MiB to 1 TiB. Iterators use additional memory.
        processes: Number of processes that share the memory equally; None for this host's number of processors.
        write_buffer_ratio: Share of the memory for write buffers, above 0 and below 1.
        bloom_bits: Bits per row of the Bloom filters; 0 disables them.
        block_bytes: Size of a block before compression.
        compaction_style: How files are merged.
        compression: How blocks are compressed.
        transfer_threads: Number of files that are uploaded or downloaded at the same time.
        has_metrics: Whether RocksDB collects statistics, which each snapshot reports.

    Raises:
        InvalidRequestError: A number is out of bounds.

    Source:
        Flink, RocksDBMemoryConfiguration, RocksDBConfigurableOptions and RocksDBOptions.
    """

    memory_bytes: int = 256 << 20
    processes: int | None = 1
    write_buffer_ratio: float = 0.5
    bloom_bits: int = 10
    block_bytes: int = 8 << 10
    compaction_style: CompactionStyle = "level"
    compression: BlockCompression = "none"
    transfer_threads: int = 4
    has_metrics: bool = False

    def __post_init__(self) -> None:
        if not MIN_MEMORY_BYTES <= self.memory_bytes <= MAX_MEMORY_BYTES:
            message = f"memory_bytes must be between 1 MiB and 1 TiB, got {self.memory_bytes} bytes"
            raise InvalidRequestError(message)
        if not 0 < self.write_buffer_ratio < 1:
            message = f"write_buffer_ratio must be > 0 and < 1, got {self.write_buffer_ratio}"
            raise InvalidRequestError(message)
        bounds = {"processes": 1, "bloom_bits": 0, "block_bytes": 1, "transfer_threads": 1}
        for name, smallest in bounds.items():
            number = getattr(self, name)
            if number is not None and number < smallest:
                raise InvalidRequestError(f"{name} must be >= {smallest}, got {number}")

    @property
    def share_bytes(self) -> int:
        """The memory of one process, at least 1 MiB."""
        processes = self.processes or os.cpu_count() or 1
        return max(MIN_MEMORY_BYTES, self.memory_bytes // processes)

    @property
    def write_buffer_bytes(self) -> int:
        """The size of a state's write buffer, at which it is flushed."""
        share = int(self.share_bytes * self.write_buffer_ratio) // _BUFFERS
        return max(64 << 10, min(_MAX_WRITE_BUFFER_BYTES, share))
