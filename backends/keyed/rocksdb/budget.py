"""The memory of all databases of a process, and what databases are opened with.

Workers of Spark wait for tasks with no database open, and there may be more of them than tasks run at a time: who
closes the last database of a process gives back what its blocks took, to the system, too, if that is much.
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

_MUCH_BYTES = 16 << 20
"""To give back so much takes some milliseconds, and to have filled it has taken a hundred."""

_NEVER = 1 << 30
"""Files that no level has."""

FILE_BYTES = 32 << 20
"""About so large are files that were merged."""

_FIRST_LEVEL_BYTES = 2 * FILE_BYTES
"""About so large is the level that new files are merged with, all of it each time. New files are small, since each snapshot
flushes: to merge four of them with RocksDB's own 256 MiB is to write many times what is new."""


class Memory:
    """Memory that databases share: blocks, indexes, filters, and write buffers.

    Args:
        share_bytes: How much, where it is enough for what they are just using.
        write_buffer_ratio: How much of it write buffers may take.
    """

    def __init__(self, share_bytes: int, write_buffer_ratio: float) -> None:
        self._bytes = share_bytes
        self.cache = Cache(share_bytes)
        self.write_buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
            int(share_bytes * write_buffer_ratio), False, self.cache
        )
        self._databases = 0
        self._lock = threading.Lock()

    def enter(self) -> None:
        """A database is about to be opened."""
        with self._lock:
            self._databases += 1

    def leave(self) -> None:
        """A database was closed."""
        with self._lock:
            self._databases -= 1
            if self._databases:
                return
            used = self.cache.get_usage()
            self.cache.set_capacity(0)
            self.cache.set_capacity(self._bytes)
        if used >= _MUCH_BYTES:
            _give_back()


_MEMORY: ProcessCache[tuple[int, float], Memory] = ProcessCache()


def memory_of(settings: RocksDBSettings) -> Memory:
    """The memory that this process' databases of such settings share."""
    key = settings.share_bytes, settings.write_buffer_ratio
    return _MEMORY.get(key, lambda: Memory(*key))


def database_options(settings: RocksDBSettings) -> Options:
    """Options of a database, and of each column family; all of a process share their memory."""
    memory = memory_of(settings)
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
    options.set_max_bytes_for_level_base(_FIRST_LEVEL_BYTES)
    options.set_target_file_size_base(FILE_BYTES)
    # Timers are deleted in the order that they are read in: without this each look passes over all that fired.
    options.add_compact_on_deletion_collector_factory(1000, 500, 0.5)
    # It waits for flushes alone then, which end; `patient_writes` waits for merges.
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


def _give_back() -> None:
    """Let the system have what was freed; of C libraries but GNU's it is not known how."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
