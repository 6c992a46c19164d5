"""The RocksDB settings, and the number of tasks that share its memory."""

import os
import re
from collections.abc import Mapping
from typing import get_args

from holdfast.backends.keyed import (
    MAX_MEMORY_BYTES,
    MIN_MEMORY_BYTES,
    BlockCompression,
    RocksDBSettings,
)
from holdfast.spark.settings.setting import (
    BOOLEAN,
    Setting,
    SettingType,
    choice,
    declared_settings,
    number,
    size,
)

_MAX_BLOOM_BITS = 100
_MAX_BLOCK_BYTES = 1 << 30
"""RocksDB refuses 4 GiB."""


def _parse_fraction(text: str) -> float:
    fraction = float(text)
    if not 0 < fraction < 1:
        raise ValueError(text)
    return fraction


def _parse_bloom_bits(text: str) -> int:
    bits = float(text)  # Flink's setting is a fraction
    if not 0 <= bits <= _MAX_BLOOM_BITS:
        raise ValueError(text)
    return round(bits)


ROCKSDB = declared_settings(
    RocksDBSettings,
    {
        "memory_bytes": Setting(
            "state.backend.rocksdb.memory",
            size(min_bytes=MIN_MEMORY_BYTES, max_bytes=MAX_MEMORY_BYTES),
            "Memory of all RocksDB databases of an executor for blocks, filters and "
            "write buffers. Its parallel tasks have equal shares of it, at least 1m each.",
            flink="state.backend.rocksdb.memory.fixed-per-tm",
        ),
        "write_buffer_ratio": Setting(
            "state.backend.rocksdb.memory.write-buffer-ratio",
            SettingType("number above 0 and below 1", _parse_fraction),
            "Fraction of that memory for write buffers.",
            flink="state.backend.rocksdb.memory.write-buffer-ratio",
        ),
        "bloom_bits": Setting(
            "state.backend.rocksdb.bloom-filter.bits-per-key",
            SettingType(f"number, 0 to {_MAX_BLOOM_BITS}", _parse_bloom_bits),
            "Bits of a filter for each row; with filters, lookups skip files without the row. `0` disables them.",
            flink="state.backend.rocksdb.bloom-filter.bits-per-key",
        ),
        "block_bytes": Setting(
            "state.backend.rocksdb.block.blocksize",
            size(min_bytes=1, max_bytes=_MAX_BLOCK_BYTES),
            "Size of a block, the unit of reads, before compression. Smaller blocks are better if a few of many rows "
            "are hot and memory is short.",
            flink="state.backend.rocksdb.block.blocksize",
        ),
        "compaction_style": Setting(
            "state.backend.rocksdb.compaction.style",
            choice("level", "universal"),
            "Strategy that merges files. `universal` writes less, and takes more disk space.",
            flink="state.backend.rocksdb.compaction.style",
        ),
        "compression": Setting(
            "state.backend.rocksdb.compression",
            choice(*get_args(BlockCompression)),
            "Compression of new blocks. Stored blocks are read with any value.",
            flink="state.backend.rocksdb.compression.per.level",
        ),
        "transfer_threads": Setting(
            "state.backend.rocksdb.checkpoint.transfer.thread.num",
            number(min_value=1),
            "Number of files that a task uploads or downloads at the same time.",
            flink="state.backend.rocksdb.checkpoint.transfer.thread.num",
        ),
        "has_metrics": Setting(
            "state.backend.rocksdb.metrics",
            BOOLEAN,
            "Whether checkpoints have RocksDB's metrics of each subtask: see `holdfast show --json`.",
        ),
    },
    prefix="rocksdb_",
)
"""By field of `RocksDBSettings`, in the order of the docs."""

_LOCAL = re.compile(r"local\[(\*|\d+)(?:,\s*\d+)?\]")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*\d+\s*,\s*(\d+)\s*,\s*\d+\s*\]")


def task_slots(configuration: Mapping[str, str]) -> int | None:
    """Return the number of tasks that an executor runs at the same time, >= 1.

    None if only the executors' hosts know it: by default those of a standalone cluster have all cores of their worker.

    Source:
        Spark, SparkContext.createTaskScheduler, and `spark.executor.cores` in its documentation.
    """
    master = configuration.get("spark.master", "").strip()
    cores: int | None
    if master == "local":
        cores = 1
    elif local := _LOCAL.fullmatch(master):
        cores = (os.cpu_count() or 1) if local[1] == "*" else int(local[1])
    elif cluster := _LOCAL_CLUSTER.fullmatch(master):
        cores = int(cluster[1])
    else:
        cores = _spark_number(configuration.get("spark.executor.cores"))
        if cores is None and master.startswith(("yarn", "k8s:")):
            cores = 1  # their default
    if cores is None:
        return None
    return max(1, cores // max(1, _spark_number(configuration.get("spark.task.cpus")) or 1))


def _spark_number(text: str | None) -> int | None:
    """Parse a number of Spark's configuration; None if it is not one, which Spark itself reports."""
    return int(text) if text is not None and text.strip().isdecimal() else None
