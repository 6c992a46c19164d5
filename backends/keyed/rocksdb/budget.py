"""The memory of all databases of a process, and what databases are opened with."""

from dataclasses import dataclass

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
    if settings.has_metrics:
        options.enable_statistics()
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
