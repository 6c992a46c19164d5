"""The memory that all databases of a process share, and the options of databases.

Idle Spark workers have no database open, and there can be more workers than task slots. So closing the last database
of a process frees its cached blocks, and returns large amounts of memory to the system.
"""

import ctypes
import threading

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    WriteBufferManager,
)

from holdfast.backends.keyed.rocksdb_settings import RocksDBSettings
from holdfast.common import ProcessCache

_TRIM_BYTES = 16 << 20
"""Returning this much to the system takes a few milliseconds; filling it took about a hundred."""

_NEVER = 1 << 30
"""More files than a level ever has."""

FILE_BYTES = 32 << 20
"""Target size of merged files."""

_FIRST_LEVEL_BYTES = 2 * FILE_BYTES
"""Target size of the level that new files are merged into, each time as a whole. Each snapshot flushes, so new files are
small, and merging four of them into RocksDB's default of 256 MiB would write far more bytes than are new."""


class Memory:
    """Memory that databases share: blocks, indexes, filters, and a share for write buffers.

    They exceed it only while they use more.
    """

    def __init__(self, share_bytes: int, write_buffer_ratio: float) -> None:
        self._bytes = share_bytes
        self.cache = Cache(share_bytes)
        self.write_buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
            int(share_bytes * write_buffer_ratio), False, self.cache
        )
        self._databases = 0
        self._lock = threading.Lock()

    def acquire(self) -> None:
        """Count a database that is about to be opened."""
        with self._lock:
            self._databases += 1

    def release(self) -> None:
        """Count a closed database, and free the memory after the last one."""
        with self._lock:
            self._databases -= 1
            if self._databases:
                return
            used = self.cache.get_usage()
            self.cache.set_capacity(0)
            self.cache.set_capacity(self._bytes)
        if used >= _TRIM_BYTES:
            _trim_heap()


_MEMORY: ProcessCache[tuple[int, float], Memory] = ProcessCache()


def memory_of(settings: RocksDBSettings) -> Memory:
    """Return the memory that this process' databases with these settings share."""
    key = settings.share_bytes, settings.write_buffer_ratio
    return _MEMORY.get(key, lambda: Memory(*key))


def database_options(settings: RocksDBSettings) -> Options:
    """Return options for a database and each column family, with the shared memory of the process."""
    memory = memory_of(settings)
    table = BlockBasedOptions()
    table.set_block_cache(memory.cache)
    table.set_cache_index_and_filter_blocks(True)  # otherwise they are not in the budget
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
    options.set_max_bytes_for_level_base(_FIRST_LEVEL_BYTES)
    options.set_target_file_size_base(FILE_BYTES)
    # Timers are deleted in the order of reading: without this each read skips the tombstones of all fired timers.
    options.add_compact_on_deletion_collector_factory(1000, 500, 0.5)
    # RocksDB then waits for flushes only, which end; `PatientWriter` waits for merges.
    options.set_level_zero_slowdown_writes_trigger(_NEVER)
    options.set_level_zero_stop_writes_trigger(_NEVER)
    options.set_soft_pending_compaction_bytes_limit(0)
    options.set_hard_pending_compaction_bytes_limit(0)
    if settings.has_metrics:
        options.enable_statistics()
    options.set_skip_stats_update_on_db_open(True)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(1 << 20)
    options.set_manifest_preallocation_size(4 << 10)
    return options


def _trim_heap() -> None:
    """Return freed memory to the system, if the C library is GNU's."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
