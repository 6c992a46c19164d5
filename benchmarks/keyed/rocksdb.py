"""RocksDB through rocksdict at its fastest: whole sorted batches, no log.

    python -m benchmarks.keyed.rocksdb flushed|checkpointed|shuffled|hashed DIRECTORY CACHE_BYTES [MEMORY_BYTES]

The options are the fastest ones measured here: a filter of 10 bits per key, no compression, 512 MiB of cache. A
snapshot is a flush, which syncs the table that it writes. For a checkpoint, RocksDB makes hard links of
its files; new sorted files are copied and synced, the other files are copied into a single one and synced.
`shuffled` has such checkpoints, and gets its keys in random order, as keys of users come: after a load in order, files
don't overlap and a merge only moves them.
`hashed` has such checkpoints, and keys that start with their key group and hash, which rescaling
requires: a load in the order of keys is not in the order of RocksDB then, and files overlap.

With a memory limit all memory of RocksDB has to fit: indexes and filters are in the cache and the newest ones
are pinned there, the last level has no filters since nearly all keys exist, there are two write buffers, and the cache
gets three tenths of the memory. The rest is for Python and for cached pages of files.
No file is mapped. Keys are looked up 4,096 at a time: a look-up holds the blocks of all its values until its end;
for 100 k scattered keys these are 400 MB, regardless of the size of the cache.
"""

import os
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from rocksdict import (
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from benchmarks.keyed.serving import Figures, Phases, serve
from benchmarks.keyed.works import KEY_GROUPS, Longs, all_keys, batch_of, totals_of
from holdfast.backends.keyed import Keys

_ZERO_TOTALS = bytes(16)
_KEYS_AT_ONCE = 4096


class RocksDB:
    """An engine. A value is two integers: rows, and the sum of values."""

    def __init__(
        self, snapshots: str, directory: Path, cache_bytes: int, memory_bytes: int | None = None
    ) -> None:
        self._has_checkpoints = snapshots != "flushed"
        self._is_shuffled = snapshots == "shuffled"
        self._is_hashed = snapshots == "hashed"
        self._path = str(directory / "rocksdb")
        self._links = directory / "links"
        self._checkpoints = directory / "checkpoints"
        self._stored: set[str] = set()
        self._unused: list[Path] = []
        self._checkpoint_id = 0
        self._is_limited = memory_bytes is not None
        self._cache_bytes = cache_bytes if memory_bytes is None else memory_bytes * 3 // 10
        self._unlogged = WriteOptions()
        self._unlogged.disable_wal = True  # type: ignore[assignment,method-assign]  # its stub is wrong

    def begin(self, type: str) -> None:
        self._type = type
        self._db = self._open()

    def fill(self, keys: int, parallelism: int) -> None:
        if parallelism != 1:
            raise NotImplementedError("plain RocksDB has no key groups")
        for batch in all_keys(keys, self._type, in_order=not self._is_shuffled):
            ones = np.ones(len(batch.values), np.int64)
            self._put(self._octets(batch.keys), np.stack([ones, batch.values], axis=1))

    def load(self, path: str) -> None:
        self._batch = batch_of(Path(path), self._type)
        for unused in self._unused:  # the driver's business
            unused.unlink()
        self._unused = []

    def count(self) -> Figures:
        phases = Phases()
        totals = totals_of(self._batch)
        if self._is_hashed:
            totals = totals.take(np.argsort(_sort_keys(totals["key"].combine_chunks())))
        else:
            totals = totals.take(pc.sort_indices(totals["key"]))  # twice as fast to look up
        keys = self._octets(totals["key"].combine_chunks())
        phases.end("group")
        before = self._get(keys)
        phases.end("look up")
        more = [totals[name].to_numpy() for name in ("value_count", "value_sum")]
        self._put(keys, before + np.stack(more, axis=1))
        phases.end("write")
        return phases.figures

    def access(self) -> None:
        db, unlogged = self._db, self._unlogged
        for key, value in zip(
            self._octets(self._batch.keys), self._batch.values.tolist(), strict=True
        ):
            before = db.get(key)
            total = value if before is None else int.from_bytes(before, "little") + value
            db.put(key, total.to_bytes(8, "little"), unlogged)

    def sums(self) -> Figures:
        sums = self._db.get(list(self._octets(self._batch.keys))) or ()
        return {"sum": sum(int.from_bytes(total, "little") for total in sums)}

    def snapshot(self) -> Figures:
        if not self._has_checkpoints:
            self._db.flush()
            return {}
        phases = Phases()
        Checkpoint(self._db).create_checkpoint(str(self._links))
        phases.end("capture")
        self._checkpoint_id += 1
        self._checkpoints.mkdir(exist_ok=True)
        names = {path.name for path in self._links.iterdir()}
        sorted_files = {name for name in names if name.endswith(".sst")}
        for name in sorted_files - self._stored:
            _write_synced(self._checkpoints / name, (self._links / name).read_bytes())
        own = {
            name: (self._links / name).read_bytes()
            for name in names - sorted_files
            if not name.startswith("OPTIONS-")  # opening doesn't need them
        }
        _write_synced(self._checkpoints / f"own-{self._checkpoint_id}", pickle.dumps(own))
        shutil.rmtree(self._links)
        phases.end("store")
        self._unused = [self._checkpoints / name for name in self._stored - sorted_files]
        self._stored = sorted_files
        return phases.figures

    def reopen(self, parallelism: int) -> None:
        if parallelism != 1:
            raise NotImplementedError("plain RocksDB has no key groups")
        self._db.close()
        self._db = self._open()

    def leave(self) -> None:
        self._db.close()

    def resume(self) -> None:
        """The database is open."""

    def look(self) -> Figures:
        count, total = self._get(self._octets(self._batch.keys)).sum(axis=0).tolist()
        return {"count": count, "sum": total}

    def _octets(self, keys: pa.Array) -> list[bytes]:
        octets = _octets(keys)
        if not self._is_hashed:
            return octets
        heads = _slices(_sort_keys(keys).astype(">u8"), 8)
        return [head + key for head, key in zip(heads, octets, strict=True)]

    def _open(self) -> Rdict:
        table = BlockBasedOptions()
        table.set_bloom_filter(10, block_based=False)
        table.set_block_cache(Cache(self._cache_bytes))
        options = Options(raw_mode=True)
        options.set_compression_type(DBCompressionType.none())
        options.set_write_buffer_size(min(64 << 20, self._cache_bytes // 4))
        if self._is_limited:
            table.set_cache_index_and_filter_blocks(True)
            table.set_pin_l0_filter_and_index_blocks_in_cache(True)
            options.set_optimize_filters_for_hits(True)
            options.set_write_buffer_size(16 << 20)
            options.set_max_write_buffer_number(2)
            options.set_allow_mmap_reads(False)
            options.set_allow_mmap_writes(False)
        options.set_block_based_table_factory(table)
        return Rdict(self._path, options)

    def _get(self, keys: list[bytes]) -> Longs:
        step = _KEYS_AT_ONCE if self._is_limited else max(1, len(keys))
        values = [
            value or _ZERO_TOTALS
            for at in range(0, len(keys), step)
            for value in self._db.get(list(keys[at : at + step])) or ()
        ]
        return np.frombuffer(b"".join(values), "<i8").reshape(-1, 2)

    def _put(self, keys: list[bytes], totals: Longs) -> None:
        values = _slices(np.ascontiguousarray(totals, "<i8"), 16)
        batch = WriteBatch(raw_mode=True)
        for key, value in zip(keys, values, strict=True):
            batch.put(key, value)
        self._db.write(batch, self._unlogged)


def _write_synced(path: Path, content: bytes) -> None:
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sort_keys(keys: pa.Array) -> npt.NDArray[np.uint64]:
    """The key group and hash of each key."""
    distinct = Keys.of([keys], KEY_GROUPS)
    return distinct.sort_keys[distinct.codes]


def _octets(keys: pa.Array) -> list[bytes]:
    if pa.types.is_string(keys.type):
        octets: list[bytes] = keys.cast(pa.binary()).to_pylist()
        return octets
    return _slices(keys.to_numpy().astype(">i8"), 8)  # in RocksDB's order


def _slices(numbers: npt.NDArray[Any], width: int) -> list[bytes]:
    whole = numbers.tobytes()
    return [whole[at : at + width] for at in range(0, len(whole), width)]


if __name__ == "__main__":
    serve(RocksDB(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:])))
