"""The memory of all databases of a process, and what databases are opened with."""

from dataclasses import dataclass
from typing import Literal

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    WriteBufferManager,
)

from holdfast.common import ProcessCache
from holdfast.errors import InvalidRequestError

CompactionStyle = Literal["level", "universal"]
Compression = Literal["none", "lz4", "zstd", "snappy"]

_LEAST_BYTES = 1 << 20
_MOST_WRITE_BUFFER_BYTES = 64 << 20
_BUFFERS = 4
"""So many write buffers are within the budget: of a state that is written to, and of those that are being flushed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RocksDBSettings:
    """How databases use memory and files.

    Attributes:
        memory_bytes: For blocks, indexes, filters and write buffers of all databases of a process together, 1 MiB at
            least. Iterators come on top.
        write_buffer_ratio: How much of it write buffers may take, above 0 and below 1.
        bloom_bits: Bits of a filter for each row; 0 for no filters.
        block_bytes: Bytes of a block, before compression.
        compaction_style: How files are merged.
        compression: How blocks are compressed.

    Raises:
        InvalidRequestError: A number is out of bounds.

    Source:
        Flink, RocksDBMemoryConfiguration and RocksDBConfigurableOptions.
    """

    memory_bytes: int = 256 << 20
    write_buffer_ratio: float = 0.5
    bloom_bits: int = 10
    block_bytes: int = 4 << 10
    compaction_style: CompactionStyle = "level"
    compression: Compression = "none"

    def __post_init__(self) -> None:
        if self.memory_bytes < _LEAST_BYTES:
            message = (
                f"RocksDB needs {_LEAST_BYTES} bytes of memory at least, not {self.memory_bytes}"
            )
            raise InvalidRequestError(message)
        if not 0 < self.write_buffer_ratio < 1:
            message = f"the write buffers' share of memory is above 0 and below 1, not {self.write_buffer_ratio}"
            raise InvalidRequestError(message)
        if self.bloom_bits < 0 or self.block_bytes < 1:
            message = (
                f"filters of {self.bloom_bits} bits a row, and blocks of {self.block_bytes} bytes"
            )
            raise InvalidRequestError(message)

    @property
    def write_buffer_bytes(self) -> int:
        """Bytes of a state's write buffer, after which it is flushed."""
        share = int(self.memory_bytes * self.write_buffer_ratio) // _BUFFERS
        return max(64 << 10, min(_MOST_WRITE_BUFFER_BYTES, share))


@dataclass(frozen=True, slots=True)
class _Memory:
    cache: Cache
    write_buffers: WriteBufferManager


_MEMORY: ProcessCache[tuple[int, float], _Memory] = ProcessCache()


def database_options(settings: RocksDBSettings) -> Options:
    """Options of a database, and of each column family; all of a process share their memory."""
    memory = _MEMORY.get(
        (settings.memory_bytes, settings.write_buffer_ratio), lambda: _memory_of(settings)
    )
    table = BlockBasedOptions()
    table.set_block_cache(memory.cache)
    table.set_cache_index_and_filter_blocks(True)  # else they would be beyond the budget
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_block_size(settings.block_bytes)
    if settings.bloom_bits:
        table.set_bloom_filter(settings.bloom_bits, block_based=False)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_manager(memory.write_buffers)
    options.set_write_buffer_size(settings.write_buffer_bytes)
    options.set_compaction_style(getattr(DBCompactionStyle, settings.compaction_style)())
    options.set_compression_type(getattr(DBCompressionType, settings.compression)())
    # Timers are deleted in the order that they are read in: without this each look passes over all that fired.
    options.add_compact_on_deletion_collector_factory(1000, 500, 0.5)
    options.set_skip_stats_update_on_db_open(True)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(1 << 20)
    options.set_manifest_preallocation_size(4 << 10)
    return options


def _memory_of(settings: RocksDBSettings) -> _Memory:
    cache = Cache(settings.memory_bytes)
    share = int(settings.memory_bytes * settings.write_buffer_ratio)
    buffers = WriteBufferManager.new_write_buffer_manager_with_cache(share, False, cache)
    return _Memory(cache, buffers)
