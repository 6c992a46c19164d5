"""What a user chooses of RocksDB. Without RocksDB: it is loaded when it is needed."""

import os
from dataclasses import dataclass
from typing import Literal

from holdfast.errors import InvalidRequestError

CompactionStyle = Literal["level", "universal"]
BlockCompression = Literal["none", "lz4", "zstd", "snappy"]

LEAST_MEMORY_BYTES = 1 << 20
MOST_MEMORY_BYTES = 1 << 40
_MOST_WRITE_BUFFER_BYTES = 64 << 20
_BUFFERS = 4
"""So many write buffers are within the budget: of a state that is written to, and of those that are being flushed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RocksDBSettings:
    """How databases use memory, files and threads.

    Attributes:
        memory_bytes: For blocks, indexes, filters and write buffers of all databases of the processes that share it,
            1 MiB to 1 TiB. Iterators come on top.
        processes: How many processes share it, each as much as the others; None for as many as this host has processors.
        write_buffer_ratio: How much of it write buffers may take, above 0 and below 1.
        bloom_bits: Bits of a filter for each row; 0 for no filters.
        block_bytes: Bytes of a block, before compression.
        compaction_style: How files are merged.
        compression: How blocks are compressed.
        transfer_threads: How many files are uploaded by a snapshot, or downloaded, at the same time.
        has_metrics: Whether RocksDB counts what it does, and each snapshot says it.

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
        if not LEAST_MEMORY_BYTES <= self.memory_bytes <= MOST_MEMORY_BYTES:
            message = f"RocksDB has 1 MiB to 1 TiB of memory, not {self.memory_bytes} bytes"
            raise InvalidRequestError(message)
        if self.processes is not None and self.processes < 1:
            message = f"RocksDB's memory is shared by a process at least, not {self.processes}"
            raise InvalidRequestError(message)
        if not 0 < self.write_buffer_ratio < 1:
            message = f"the write buffers' share of memory is above 0 and below 1, not {self.write_buffer_ratio}"
            raise InvalidRequestError(message)
        if self.bloom_bits < 0:
            message = f"a filter has 0 bits a row or more, not {self.bloom_bits}"
            raise InvalidRequestError(message)
        if self.block_bytes < 1:
            message = f"a block has a byte at least, not {self.block_bytes}"
            raise InvalidRequestError(message)
        if self.transfer_threads < 1:
            message = f"RocksDB's files need a thread at least, not {self.transfer_threads}"
            raise InvalidRequestError(message)

    @property
    def share_bytes(self) -> int:
        """What a process may use of the memory, 1 MiB at least."""
        processes = self.processes or os.cpu_count() or 1
        return max(LEAST_MEMORY_BYTES, self.memory_bytes // processes)

    @property
    def write_buffer_bytes(self) -> int:
        """Bytes of a state's write buffer, after which it is flushed."""
        share = int(self.share_bytes * self.write_buffer_ratio) // _BUFFERS
        return max(64 << 10, min(_MOST_WRITE_BUFFER_BYTES, share))
