"""What RocksDB says of itself, by Flink's names.

Source:
    Flink, RocksDBNativeMetricOptions. Times of merging and flushing are RocksDB's own histograms.
"""

import re
from collections.abc import Iterable, Mapping

from rocksdict import Options, Rdict

_SUMS = (
    "estimate-num-keys",
    "estimate-live-data-size",
    "live-sst-files-size",
    "cur-size-all-mem-tables",
    "estimate-pending-compaction-bytes",
)
"""Properties that each column family has for itself."""

_OF_ALL = (
    "block-cache-capacity",
    "block-cache-usage",
    "num-running-compactions",
    "num-running-flushes",
)
"""Properties that are of all column families, the cache's of all databases of the process."""

_COUNTED = {
    "rocksdb.block.cache.hit COUNT": "block-cache-hit",
    "rocksdb.block.cache.miss COUNT": "block-cache-miss",
    "rocksdb.stall.micros COUNT": "stall-micros",
    "rocksdb.compaction.times.micros SUM": "compaction-micros",
    "rocksdb.db.flush.micros SUM": "flush-micros",
}
"""Statistics since the database was opened, as RocksDB prints them."""

_STATISTIC = re.compile(r"^(\S+) .*?(COUNT|SUM) : (\d+)$", re.MULTILINE)


def metrics_of(database: Rdict, families: Iterable[Rdict], options: Options) -> Mapping[str, int]:
    """The metrics of a database: keys, bytes, microseconds, and numbers of files and of what runs.

    Args:
        database: The database.
        families: The column families of it that have rows.
        options: What it was opened with; statistics are among them if they were turned on.
    """
    families = list(families)
    metrics = {name: sum(_property(family, name) for family in families) for name in _SUMS}
    metrics |= {name: _property(database, name) for name in _OF_ALL}
    metrics["num-live-sst-files"] = len(database.live_files())
    for name, kind, number in _STATISTIC.findall(options.get_statistics() or ""):
        known = _COUNTED.get(f"{name} {kind}")
        if known is not None:
            metrics[known] = int(number)
    return metrics


def _property(rows: Rdict, name: str) -> int:
    return rows.property_int_value(f"rocksdb.{name}") or 0
